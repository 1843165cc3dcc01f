// Areas for values: a squarified treemap (Bruls, Huizing, van Wijk 2000).

export interface Rectangle {
  x: number
  y: number
  width: number
  height: number
}

/** Returns a rectangle for each value, in the same order, whose areas are as the values and fill the whole. Values that are not above zero get none: a rectangle without area. */
export function squarify(values: readonly number[], width: number, height: number): Rectangle[] {
  const tiles: Rectangle[] = values.map(() => ({ x: 0, y: 0, width: 0, height: 0 }))
  const order = values
    .map((_, i) => i)
    .filter((i) => values[i]! > 0 && Number.isFinite(values[i]))
    .sort((a, b) => values[b]! - values[a]! || a - b)
  const total = order.reduce((sum, i) => sum + values[i]!, 0)
  if (!(width > 0 && height > 0 && total > 0)) return tiles
  const scale = (width * height) / total
  const area = (i: number): number => values[i]! * scale
  let free: Rectangle = { x: 0, y: 0, width, height }
  for (let start = 0; start < order.length; ) {
    const side = Math.min(free.width, free.height)
    let end = start + 1
    let sum = area(order[start]!)
    // A row grows as long as its worst tile becomes more like a square.
    while (end < order.length) {
      const next = sum + area(order[end]!)
      if (worst(area(order[start]!), area(order[end]!), next, side) > worst(area(order[start]!), area(order[end - 1]!), sum, side)) break
      sum = next
      end++
    }
    const isLast = end === order.length
    free = layRow(order.slice(start, end), area, sum, free, isLast, tiles)
    start = end
  }
  return tiles
}

/** Returns the largest ratio of sides in a row with this sum, along a side; its largest and smallest areas decide. */
function worst(largest: number, smallest: number, sum: number, side: number): number {
  const square = side * side
  return Math.max((square * largest) / (sum * sum), (sum * sum) / (square * smallest))
}

function layRow(row: readonly number[], area: (i: number) => number, sum: number, free: Rectangle, isLast: boolean, tiles: Rectangle[]): Rectangle {
  const vertical = free.width >= free.height // the row stands at the left
  const length = vertical ? free.height : free.width
  const room = vertical ? free.width : free.height
  const depth = isLast ? room : Math.min(room, sum / length)
  let at = 0
  row.forEach((i, n) => {
    // The last tile of a row ends where the row does, whatever was rounded before.
    const extent = n === row.length - 1 ? length - at : Math.min(length - at, area(i) / depth)
    tiles[i] = vertical ? { x: free.x, y: free.y + at, width: depth, height: extent } : { x: free.x + at, y: free.y, width: extent, height: depth }
    at += extent
  })
  return vertical ? { x: free.x + depth, y: free.y, width: free.width - depth, height: free.height } : { x: free.x, y: free.y + depth, width: free.width, height: free.height - depth }
}

/** Returns how many of the values, the largest first, have at least a share of them all; the others are drawn together. */
export function countLarge(values: readonly number[], share: number, most: number): number {
  const total = values.reduce((sum, v) => sum + Math.max(0, v), 0)
  let n = 0
  while (n < Math.min(values.length, most) && values[n]! > 0 && values[n]! >= share * total) n++
  return n
}
