// The matrix on a canvas: while it scrolls, and where its cells are too many or too small for elements.
import { byteOf, countLooks, isBehind, isReferenced, isStale, lookOf, lookSigns, nameOfImage, worstFirst, worstOf, type Cells, type Counts, type Look, type View } from '../matrix'
import { resolveColor } from '../theme'

/** Where things are, in pixels. */
export interface Geometry {
  zoom: number
  /** Height of the headings of columns, and width of those of rows. */
  headHeight: number
  headWidth: number
}

export interface Item {
  index: number
  start: number
  size: number
}

const names = ['--surface', '--ink', '--muted', '--line', '--raised', '--good', '--good-faint', '--moving', '--waiting', '--attention', '--attention-soft', '--bad', '--bad-soft', '--unknown', '--accent', '--edge'] as const
export type Colors = Record<(typeof names)[number], string> & { font: string }

export function readColors(element: Element): Colors {
  const colors = { font: getComputedStyle(element).fontFamily } as Colors
  for (const name of names) colors[name] = resolveColor(element, `var(${name})`)
  return colors
}

const solid: Record<Look, keyof Colors | undefined> = {
  ready: '--good-faint', absent: undefined, planned: '--waiting', queued: '--waiting', syncing: '--moving', failed: '--bad',
  stalled: '--attention', leaving: '--muted', other: '--muted', unknown: '--unknown',
}

/** From this size on, a cell has a sign. */
export const signZoom = 12
/** Below this size, a cell is a square of one colour. */
const squareZoom = 8
/** From this size on, there is a line between squares. */
const linedZoom = 4

/** Draws cells by copying each look from a picture of it. */
export class CellPainter {
  private readonly sprites = new Map<number, HTMLCanvasElement>()
  private pixels?: { m: Cells; view: View; canvas: HTMLCanvasElement; at: Map<number, number> }

  constructor(
    private readonly colors: Colors,
    private readonly zoom: number,
    private readonly ratio: number,
  ) {}

  drawCell(ctx: CanvasRenderingContext2D, cell: number, x: number, y: number): void {
    let sprite = this.sprites.get(cell)
    if (!sprite) {
      sprite = document.createElement('canvas')
      sprite.width = sprite.height = Math.ceil(this.zoom * this.ratio)
      const own = sprite.getContext('2d')!
      own.scale(this.ratio, this.ratio)
      this.paint(own, lookOf(cell), cell)
      this.sprites.set(cell, sprite)
    }
    ctx.drawImage(sprite, x, y, this.zoom, this.zoom)
  }

  private paint(ctx: CanvasRenderingContext2D, look: Look, cell: number): void {
    const z = this.zoom
    const c = this.colors
    const tile = (color: string): void => {
      ctx.fillStyle = color
      ctx.beginPath()
      ctx.roundRect(1, 1, z - 2, z - 2, Math.min(4, z / 5))
      ctx.fill()
    }
    const disc = (share: number, color: string, stroke = 0): void => {
      ctx.beginPath()
      ctx.arc(z / 2, z / 2, (z * share - stroke) / 2, 0, 2 * Math.PI)
      ctx.lineWidth = stroke
      ctx.fillStyle = ctx.strokeStyle = color
      if (stroke) ctx.stroke()
      else ctx.fill()
    }
    const glyph = (text: string, color: string): void => {
      ctx.fillStyle = color
      ctx.font = `700 ${Math.round(z * 0.6)}px ${c.font}`
      ctx.textAlign = 'center'
      ctx.textBaseline = 'middle'
      ctx.fillText(text, z / 2, z / 2 + z * 0.03)
    }
    const signs = z >= signZoom
    if (isStale(cell)) ctx.globalAlpha = 0.45
    switch (look) {
      case 'ready':
        disc(0.22, isReferenced(cell) ? mixed(c) : c['--good-faint'])
        break
      case 'planned':
        disc(0.34, c['--waiting'], 1)
        break
      case 'queued':
        disc(0.5, c['--waiting'], 2)
        break
      case 'syncing':
        disc(0.56, c['--moving'])
        break
      case 'failed':
        tile(signs ? c['--bad-soft'] : c['--bad'])
        if (signs) glyph('✗', c['--bad'])
        break
      case 'stalled':
        tile(signs ? c['--attention-soft'] : c['--attention'])
        if (signs) glyph('!', c['--attention'])
        break
      case 'unknown':
        this.hatch(ctx, z)
        if (signs) glyph('?', c['--unknown'])
        break
      case 'leaving':
        ctx.fillStyle = c['--muted']
        ctx.fillRect(z * 0.25, z / 2 - 1, z * 0.5, 2)
        break
      case 'other':
        if (signs) glyph('…', c['--muted'])
        else disc(0.3, c['--muted'])
        break
      case 'absent':
    }
    ctx.globalAlpha = 1
    if (signs && isReferenced(cell) && look !== 'ready') {
      ctx.fillStyle = c['--edge']
      ctx.globalAlpha = 0.55
      ctx.fillRect(z * 0.3, z - 3, z * 0.4, 1)
      ctx.globalAlpha = 1
    }
    if (signs && isBehind(cell)) {
      ctx.fillStyle = c['--attention']
      ctx.beginPath()
      ctx.moveTo(z - 2, 2)
      ctx.lineTo(z - 2, 2 + z * 0.28)
      ctx.lineTo(z - 2 - z * 0.28, 2)
      ctx.fill()
    }
  }

  private hatch(ctx: CanvasRenderingContext2D, z: number): void {
    ctx.save()
    ctx.beginPath()
    ctx.roundRect(1, 1, z - 2, z - 2, Math.min(4, z / 5))
    ctx.clip()
    ctx.strokeStyle = this.colors['--unknown']
    ctx.globalAlpha *= 0.35
    ctx.lineWidth = 1
    ctx.beginPath()
    for (let at = -z; at < z; at += 4) {
      ctx.moveTo(at, z)
      ctx.lineTo(at + z, 0)
    }
    ctx.stroke()
    ctx.restore()
  }

  /** Draws squares of one colour, one row of pixels a cluster, which are then stretched. */
  pixelsOf(m: Cells, view: View): { canvas: HTMLCanvasElement; at: Map<number, number> } {
    if (this.pixels?.m === m && this.pixels.view === view) return this.pixels
    const at = new Map<number, number>()
    view.rows.forEach((row, i) => {
      if (row.kind === 'cluster') at.set(i, at.size)
    })
    const canvas = document.createElement('canvas')
    canvas.width = Math.max(1, view.columns.length)
    canvas.height = Math.max(1, at.size)
    const ctx = canvas.getContext('2d')!
    const image = ctx.createImageData(canvas.width, canvas.height)
    const rgba = paletteOf(this.colors)
    const width = m.clusters.length
    let offset = 0
    for (const row of view.rows) {
      if (row.kind !== 'cluster') continue
      for (const { image: i } of view.columns) {
        image.data.set(rgba[m.bytes[i * width + row.cluster]!]!, offset)
        offset += 4
      }
    }
    ctx.putImageData(image, 0, 0)
    this.pixels = { m, view, canvas, at }
    return this.pixels
  }

  drawMatrix(ctx: CanvasRenderingContext2D, m: Cells, view: View, rows: readonly Item[], columns: readonly Item[], left: number, top: number): void {
    if (this.zoom < squareZoom) {
      this.drawPixels(ctx, m, view, rows, columns, left, top)
      return
    }
    const width = m.clusters.length
    for (const r of rows) {
      const row = view.rows[r.index]!
      if (row.kind === 'group' && !row.closed) continue
      for (const c of columns) {
        const column = view.columns[c.index]!
        const x = c.start + c.size - this.zoom - left
        const y = r.start + (r.size - this.zoom) / 2 - top
        if (row.kind === 'cluster') this.drawCell(ctx, m.bytes[column.image * width + row.cluster]!, x, y)
        else this.drawCell(ctx, byteOf(worstOf(countLooks(m, row.members, [column])).look), x, y)
      }
    }
  }

  private drawPixels(ctx: CanvasRenderingContext2D, m: Cells, view: View, rows: readonly Item[], columns: readonly Item[], left: number, top: number): void {
    const { canvas, at } = this.pixelsOf(m, view)
    const first = columns[0]
    const last = columns.at(-1)
    if (!first || !last) return
    ctx.imageSmoothingEnabled = false
    const x = first.start - left
    const across = last.start + last.size - first.start
    for (const r of rows) {
      const y = at.get(r.index)
      if (y !== undefined) ctx.drawImage(canvas, first.index, y, last.index - first.index + 1, 1, x, r.start - top, across, r.size)
    }
    if (this.zoom < linedZoom) return
    ctx.fillStyle = this.colors['--surface']
    for (const r of rows) {
      if (at.has(r.index)) ctx.fillRect(x, r.start - top, across, 1)
    }
    for (const c of columns) ctx.fillRect(c.start - left, 0, 1, ctx.canvas.height)
  }
}

/** The dot of an image that is ready, and that machines need. */
function mixed(colors: Colors): string {
  return `color-mix(in oklab, ${colors['--good-faint']}, ${colors['--good']} 20%)`
}

function paletteOf(colors: Colors): Uint8ClampedArray[] {
  const probe = document.createElement('canvas')
  probe.width = probe.height = 1
  const ctx = probe.getContext('2d', { willReadFrequently: true })!
  const rgba = (color: string | undefined): Uint8ClampedArray => {
    ctx.clearRect(0, 0, 1, 1)
    if (color) {
      ctx.fillStyle = color
      ctx.fillRect(0, 0, 1, 1)
    }
    return ctx.getImageData(0, 0, 1, 1).data
  }
  const byLook = new Map<Look, Uint8ClampedArray>()
  return Array.from({ length: 256 }, (_, cell) => {
    const look = lookOf(cell)
    let color = byLook.get(look)
    if (!color) {
      const name = solid[look]
      color = rgba(name && colors[name])
      if (look === 'ready') color = withAlpha(color, 0.6) // a wall of them hides what is not
      byLook.set(look, color)
    }
    return isStale(cell) ? withAlpha(color, 0.45) : color
  })
}

function withAlpha(color: Uint8ClampedArray, share: number): Uint8ClampedArray {
  const dimmed = color.slice()
  dimmed[3] = dimmed[3]! * share
  return dimmed
}

/** Draws what is seen: cells, and over them the headings. */
export function drawScene(ctx: CanvasRenderingContext2D, painter: CellPainter, colors: Colors, g: Geometry, m: Cells, view: View, rows: readonly Item[], columns: readonly Item[], counts: ReadonlyMap<number, Counts>, box: { left: number; top: number; width: number; height: number }): void {
  ctx.fillStyle = colors['--surface']
  ctx.fillRect(0, 0, box.width, box.height)
  ctx.save()
  ctx.beginPath()
  ctx.rect(g.headWidth, g.headHeight, box.width, box.height)
  ctx.clip()
  painter.drawMatrix(ctx, m, view, rows, columns, box.left, box.top)
  ctx.restore()
  ctx.save()
  ctx.beginPath()
  ctx.rect(0, g.headHeight, box.width, box.height)
  ctx.clip()
  ctx.textBaseline = 'middle'
  ctx.textAlign = 'left'
  for (const r of rows) {
    const row = view.rows[r.index]!
    const y = r.start + r.size / 2 - box.top
    if (row.kind === 'group') {
      ctx.fillStyle = colors['--ink']
      ctx.font = `600 13px ${colors.font}`
      const heading = `${row.closed ? '▸' : '▾'} ${row.name || 'without'}  ${row.members.length}`
      ctx.fillText(heading, 4, y, row.closed ? g.headWidth - 8 : undefined)
      if (!row.closed) drawCounts(ctx, colors, counts.get(r.index) ?? {}, 4 + ctx.measureText(heading).width + 20, y)
    } else if (g.zoom >= signZoom) {
      ctx.fillStyle = m.clusters[row.cluster]!.unknown ? colors['--muted'] : colors['--ink']
      ctx.font = `400 ${rowFont(g.zoom)}px ${colors.font}`
      ctx.fillText(row.name, 16, y, g.headWidth - 20)
    }
  }
  ctx.restore()
  if (g.zoom < signZoom) return
  ctx.save()
  ctx.beginPath()
  ctx.rect(g.headWidth, 0, box.width, g.headHeight)
  ctx.clip()
  ctx.font = `400 ${columnFont(g.zoom)}px ${colors.font}`
  for (const c of columns) {
    const image = m.images[view.columns[c.index]!.image]!
    ctx.save()
    ctx.translate(c.start + c.size - g.zoom / 2 - box.left, g.headHeight - 6)
    ctx.rotate(-Math.PI / 2)
    ctx.fillStyle = image.current || image.source ? colors['--ink'] : colors['--muted']
    ctx.fillText(nameOfImage(image), 0, 0, g.headHeight - 10)
    ctx.restore()
  }
  ctx.restore()
}

function drawCounts(ctx: CanvasRenderingContext2D, colors: Colors, counts: Counts, x: number, y: number): void {
  ctx.font = `400 12px ${colors.font}`
  for (const look of worstFirst) {
    const sign = lookSigns[look]
    const count = counts[look]
    if (!sign || !count) continue
    const text = `${sign} ${count}`
    const name = solid[look]
    ctx.fillStyle = name ? colors[name] : colors['--muted']
    ctx.fillText(text, x, y)
    x += ctx.measureText(text).width + 12
  }
}

export const rowFont = (zoom: number): number => (zoom >= 18 ? 13 : zoom >= 14 ? 11 : 10)
export const columnFont = (zoom: number): number => (zoom >= 18 ? 12 : zoom >= 14 ? 11 : 10)
