// Shows the hint to scroll above each table that is wider than the page, and the button that copies the command.
for (const button of document.querySelectorAll('button.copy')) {
  button.hidden = false;
  button.onclick = () => navigator.clipboard.writeText(button.previousElementSibling.textContent);
}
for (const table of document.querySelectorAll('.scroll')) {
  const mark = () => {
    table.classList.toggle('wide', table.scrollLeft + table.clientWidth < table.scrollWidth - 1);
  };
  mark();
  table.addEventListener('scroll', mark, {passive: true});
  window.addEventListener('resize', mark);
}
