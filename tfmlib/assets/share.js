// Two scores and their shares: the smallest interactive figure of the book, a pattern for others.
function render({ model, el }) {
  el.innerHTML = `
    <label>the first score is ahead by <output></output>
      <input type="range" min="-6" max="6" step="0.1"></label>
    <div class="tfm-split" aria-hidden="true"><span></span><span></span></div>`;
  const slider = el.querySelector("input"), out = el.querySelector("output"), [first, second] = el.querySelectorAll("span");

  function draw() {
    const lead = model.get("lead"), share = 1 / (1 + Math.exp(-lead));
    slider.value = lead;
    out.textContent = `${lead.toFixed(1)}: shares ${share.toFixed(3)} and ${(1 - share).toFixed(3)}`;
    first.style.flexGrow = share;
    second.style.flexGrow = 1 - share;
  }
  slider.oninput = () => { model.set("lead", Number(slider.value)); model.save_changes(); };
  model.on("change:lead", draw);
  draw();
  return () => model.off("change:lead", draw);
}
export default { render };
