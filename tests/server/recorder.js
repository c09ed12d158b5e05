// what the page plays, and the words that it lights, each with the time at which it does
window.recorded = {heard: [], lit: []};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (at) {
  recorded.heard.push({at, rate: this.buffer.sampleRate, samples: Array.from(this.buffer.getChannelData(0))});
  return start.call(this, at);
};
document.addEventListener("DOMContentLoaded", () => new MutationObserver((records) => {
  for (const {target} of records)
    if (target.className === "lit") recorded.lit.push([target.textContent, performance.now() / 1000]);
}).observe(document.getElementById("words"), {subtree: true, attributes: true, attributeFilter: ["class"]}));
