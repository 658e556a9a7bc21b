// Two scores and their shares: the smallest interactive figure of the book, a pattern for others.
function render({ model, el }) {
  el.innerHTML = `
    <label>the first score is ahead by <span class="tfm-value" aria-hidden="true"></span>
      <input type="range" min="-6" max="6" step="0.1"></label>
    <div class="tfm-split" aria-hidden="true"><span></span><span></span></div>`;
  const slider = el.querySelector("input"), out = el.querySelector(".tfm-value"), [first, second] = el.querySelectorAll(".tfm-split span");

  function draw() {
    const lead = model.get("lead"), share = 1 / (1 + Math.exp(-lead));
    slider.value = lead;
    out.textContent = `${lead.toFixed(1)}: shares ${share.toFixed(3)} and ${(1 - share).toFixed(3)}`;
    slider.setAttribute("aria-valuetext", out.textContent);
    first.style.flexGrow = share;
    second.style.flexGrow = 1 - share;
  }
  slider.oninput = () => { model.set("lead", Number(slider.value)); model.save_changes(); };
  model.on("change:lead", draw);
  draw();
  return () => model.off("change:lead", draw);
}
export default { render };
