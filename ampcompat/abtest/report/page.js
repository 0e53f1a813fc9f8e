// Draws every chart in the colours of the page, and again when these or the width change.
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const touch = window.matchMedia('(pointer: coarse)');  // there a finger on a chart scrolls the page
async function draw() {
  for (const box of document.querySelectorAll('.chart')) {
    const spec = JSON.parse(box.querySelector('script').textContent), target = box.querySelector('.drawn');
    spec.config = CONFIGS[dark.matches ? 1 : 0];
    spec.width = target.clientWidth;
    spec.autosize = {type: 'fit-x', contains: 'padding'};
    spec.height = 220;
    if (touch.matches && spec.params) spec.params = spec.params.filter(each => each.name !== 'zoom');
    const actions = {export: true, source: false, compiled: false, editor: false};
    await vegaEmbed(target, spec, {actions, tooltip: {theme: dark.matches ? 'dark' : 'light'}});
  }
}
let drawnWidth = window.innerWidth, waiting = 0;
draw();
dark.addEventListener('change', draw);
window.addEventListener('resize', () => {
  if (window.innerWidth === drawnWidth) return;  // on phones scrolling changes the height
  drawnWidth = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(draw, 200);
});
for (const button of document.querySelectorAll('button.copy')) {
  button.hidden = false;
  button.onclick = () => navigator.clipboard.writeText(button.previousElementSibling.textContent);
}
