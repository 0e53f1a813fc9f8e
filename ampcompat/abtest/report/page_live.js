// Loads the page again when the server has more. What is hidden and chosen is kept from one load to the next.
const since = Date.now();
async function follow() {
  const status = document.querySelector('.running');
  try {
    const version = await (await fetch('version')).text();
    const isRead = document.querySelector('#reading:not([hidden])') !== null;
    if (version !== VERSION && !isRead && !document.hidden && Date.now() - since > 3000) return location.reload();
  } catch (error) {
    status.textContent = 'ampcompat ab has ended, or cannot be reached: this is the last state.';
    return;
  }
  setTimeout(follow, 1000);
}
follow();
