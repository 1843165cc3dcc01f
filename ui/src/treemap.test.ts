import { describe, expect, test } from 'vitest'
import { countLarge, squarify, type Rectangle } from './treemap'

// A generator of numbers that are the same in each run.
function sequence(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296
    return state / 4294967296
  }
}

const overlap = (a: Rectangle, b: Rectangle): number =>
  Math.max(0, Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x)) * Math.max(0, Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y))

describe.each([1, 2, 3, 7, 40, 200])('%i values', (n) => {
  test.each([
    [960, 400],
    [340, 420],
    [1, 1],
    [4000, 10],
  ])('fill %i × %i by their shares', (width, height) => {
    const next = sequence(n * width)
    const values = Array.from({ length: n }, () => Math.ceil(next() ** 4 * 2 ** 40))
    const total = values.reduce((a, b) => a + b, 0)
    const tiles = squarify(values, width, height)
    const whole = width * height
    expect(tiles.reduce((sum, t) => sum + t.width * t.height, 0)).toBeCloseTo(whole, 3)
    tiles.forEach((t, i) => {
      expect(t.width * t.height).toBeCloseTo((values[i]! / total) * whole, 3)
      expect(t.x).toBeGreaterThanOrEqual(-1e-9)
      expect(t.y).toBeGreaterThanOrEqual(-1e-9)
      expect(t.x + t.width).toBeLessThanOrEqual(width + 1e-6)
      expect(t.y + t.height).toBeLessThanOrEqual(height + 1e-6)
      for (let k = 0; k < i; k++) expect(overlap(t, tiles[k]!)).toBeLessThan(whole * 1e-9)
    })
  })
})

test('the example of the paper', () => {
  const tiles = squarify([6, 6, 4, 3, 2, 2, 1], 6, 4)
  expect(tiles[0]).toEqual({ x: 0, y: 0, width: 3, height: 2 })
  expect(tiles[1]).toEqual({ x: 0, y: 2, width: 3, height: 2 })
  const ratios = tiles.map((t) => Math.max(t.width / t.height, t.height / t.width))
  expect(Math.max(...ratios)).toBeLessThan(3)
})

test('equal values make tiles that are almost squares', () => {
  const ratios = squarify(Array.from({ length: 24 }, () => 5), 900, 400).map((t) => Math.max(t.width / t.height, t.height / t.width))
  expect(Math.max(...ratios)).toBeLessThan(2)
})

test('the order of the values does not change their tiles', () => {
  const [nine, four, one] = squarify([9, 4, 1], 30, 20)
  expect(squarify([1, 9, 4], 30, 20)).toEqual([one, nine, four])
})

test.each([[[]], [[0, 0]], [[-1]], [[Number.NaN]], [[Number.POSITIVE_INFINITY]]])('nothing of %j has an area', (values) => {
  for (const t of squarify(values, 100, 100)) expect(t).toEqual({ x: 0, y: 0, width: 0, height: 0 })
})

test('values without size are left out', () => {
  const tiles = squarify([4, 0, 4], 100, 100)
  expect(tiles[1]!.width * tiles[1]!.height).toBe(0)
  expect(tiles[0]!.width * tiles[0]!.height).toBeCloseTo(5000)
})

test.each([
  [[50, 30, 20], 0.1, 10, 3],
  [[50, 30, 20], 0.25, 10, 2],
  [[50, 30, 20], 0.1, 2, 2],
  [[97, 1, 1, 1], 0.05, 10, 1],
  [[], 0.1, 10, 0],
  [[0, 0], 0.1, 10, 0],
])('of %j with a share of %f, at most %i, %i are large', (values, share, most, want) => {
  expect(countLarge(values, share, most)).toBe(want)
})
