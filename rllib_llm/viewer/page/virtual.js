// A list of which only what is near the viewport exists. Heights are measured as they show.

const MARGIN = 400;  // pixels above and below that are kept ready

class VirtualList {
  // box: the element that scrolls; estimate: a first guess at an item's height;
  // render: from an item's index to its element.
  constructor(box, estimate, render) {
    Object.assign(this, { box, estimate, render, nodes: new Map() });
    this.inner = el("div", { class: "virtual", role: "presentation" });
    box.replaceChildren(this.inner);
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(box);
    this.setCount(0);
  }

  setCount(count) {
    this.heights = new Float64Array(count).fill(this.estimate);
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
    this.addUp();
    this.draw();
  }

  addUp() {
    this.offsets = new Float64Array(this.heights.length + 1);
    this.heights.forEach((height, i) => { this.offsets[i + 1] = this.offsets[i] + height; });
    this.inner.style.height = `${this.offsets.at(-1)}px`;
  }

  indexAt(y) {
    let low = 0, high = this.heights.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= y) low = middle; else high = middle - 1;
    }
    return low;
  }

  draw() {
    if (!this.heights.length || !this.box.isConnected) return;
    for (let again = 3; again; again--) {
      const top = this.box.scrollTop;
      const first = this.indexAt(top - MARGIN);
      const last = this.indexAt(top + this.box.clientHeight + MARGIN);
      for (const [i, node] of this.nodes) {
        if (i < first || i > last) { node.remove(); this.nodes.delete(i); }
      }
      for (let i = first; i <= last; i++) {
        if (this.nodes.has(i)) continue;
        const node = this.render(i);
        this.nodes.set(i, node);
        this.inner.append(node);
        this.observer.observe(node);
      }
      if (!this.measure(top)) break;
    }
    for (const [i, node] of this.nodes) node.style.transform = `translateY(${this.offsets[i]}px)`;
  }

  // Take over real heights; what stands at the top of the viewport stays there.
  measure(top) {
    const anchor = this.indexAt(top), inside = top - this.offsets[anchor];
    let changed = false;
    for (const [i, node] of this.nodes) {
      const height = node.offsetHeight;
      if (height && height !== this.heights[i]) { this.heights[i] = height; changed = true; }
    }
    if (changed) {
      this.addUp();
      const wanted = this.offsets[anchor] + inside;
      if (top > 0 && wanted !== top) this.box.scrollTop = wanted;
    }
    return changed;
  }

  redraw() {
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
    this.draw();
  }

  show(i) {
    const top = this.box.scrollTop, height = this.box.clientHeight;
    if (this.offsets[i] < top) this.box.scrollTop = this.offsets[i];
    else if (this.offsets[i + 1] > top + height) {
      this.box.scrollTop = Math.min(this.offsets[i], this.offsets[i + 1] - height);
    }
    this.draw();
  }
}
