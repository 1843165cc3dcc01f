// The matrix clusters × images as a grid: elements at rest, a canvas while it scrolls.
import type { Signal } from '@preact/signals'
import { defaultRangeExtractor, elementScroll, observeElementOffset, observeElementRect, Virtualizer, type VirtualItem } from '@tanstack/virtual-core'
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef } from 'preact/hooks'
import { actionOfKey, moveInGrid, rowHeight, type Position } from '../gridmoves'
import { countLooks, nameOfImage, type Cells, type Column, type Counts, type Row, type View } from '../matrix'
import { theme } from '../theme'
import { CellPainter, columnFont, drawScene, readColors, signZoom, type Colors, type Geometry } from './matrixcanvas'
import { GridRow } from './matrixrow'

/** What the pointer or the focus is on. A row of -1 is the headings, and a column of -1 those of rows. */
export type Pointed = Position

/** More cells than these are drawn on the canvas at rest too. */
const mostElements = 2600
/** Cells smaller than this are no elements. */
const leastZoom = 8
/** How long after the last scroll the elements are drawn. */
const restMilliseconds = 120

export interface MatrixGridProps {
  label: string
  cells: Cells
  view: View
  zoom: number
  pointed: Signal<Pointed | undefined>
  /** What is seen of the grid, for a map of it. */
  onWindow?: (element: HTMLElement, corner: { width: number; height: number }) => void
  onOpen: (row: Row, column: Column) => void
  onOpenCluster: (cluster: string) => void
  onOpenImage: (image: number) => void
  onToggle: (group: string) => void
  onZoom: (step: 1 | -1) => void
}

function useVirtualizer(options: Pick<Virtualizer<HTMLDivElement, Element>['options'], 'count' | 'getScrollElement' | 'estimateSize' | 'getItemKey' | 'paddingStart' | 'rangeExtractor' | 'horizontal'> & { onChange: () => void }): Virtualizer<HTMLDivElement, Element> {
  const instance = useRef<Virtualizer<HTMLDivElement, Element>>(undefined)
  const all = { ...options, scrollPaddingStart: options.paddingStart, overscan: 1, observeElementRect, observeElementOffset, scrollToFn: elementScroll }
  if (instance.current) instance.current.setOptions(all)
  else instance.current = new Virtualizer(all)
  useLayoutEffect(() => instance.current!._didMount(), [])
  useLayoutEffect(() => instance.current!._willUpdate())
  return instance.current
}

export function MatrixGrid(props: MatrixGridProps) {
  const { cells, view, zoom, pointed } = props
  const scroller = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const [, rerender] = useReducer((n: number, _: void) => n + 1, 0)
  const active = useRef<Position>({ row: 0, column: 0 })
  const focusNext = useRef(false)
  const scrolling = useRef(false)
  const moved = useRef(false)
  const hadFocus = scroller.current?.contains(document.activeElement) ?? false
  const dark = theme.dark.value

  active.current = clampPosition(active.current, view)
  const g = useMemo(() => geometryOf(cells, view, zoom), [cells.images, cells.clusters, view, zoom])
  const rangeWith = (at: number) => (range: Parameters<typeof defaultRangeExtractor>[0]) => {
    const all = defaultRangeExtractor(range)
    return at < 0 || at >= range.count || all.includes(at) ? all : [...all, at].sort((a, b) => a - b)
  }
  const onChange = (): void => {
    if (!scrolling.current) rerender()
  }
  const rows = useVirtualizer({
    count: view.rows.length, getScrollElement: () => scroller.current, estimateSize: (i) => rowHeight(view.rows[i]!, zoom), getItemKey: useCallback((i: number) => i, [view, zoom]),
    paddingStart: g.headHeight, rangeExtractor: rangeWith(active.current.row), horizontal: false, onChange,
  })
  const columns = useVirtualizer({
    count: view.columns.length, getScrollElement: () => scroller.current, estimateSize: (i) => zoom + (view.columns[i]!.first ? gapOf(zoom) : 0), getItemKey: useCallback((i: number) => i, [view, zoom]),
    paddingStart: g.headWidth, rangeExtractor: rangeWith(active.current.column), horizontal: true, onChange,
  })
  const rowItems = rows.getVirtualItems()
  const columnItems = columns.getVirtualItems()
  const drawn = zoom < leastZoom || rowItems.length * columnItems.length > mostElements
  const cellColumns = drawn ? columnItems.filter((c) => c.index === active.current.column) : columnItems
  const cellRows = zoom >= signZoom ? rowItems : rowItems.filter((r) => !drawn || r.index === active.current.row || view.rows[r.index]!.kind === 'group')
  const groupCounts = useMemo(() => {
    const counts = new Map<number, Counts>()
    view.rows.forEach((row, i) => {
      if (row.kind === 'group') counts.set(i, countLooks(cells, row.members, view.columns))
    })
    return counts
  }, [cells, view])

  const painter = useRef<{ key: string; painter: CellPainter; colors: Colors }>(undefined)
  const draw = (): void => {
    const element = scroller.current
    const target = canvas.current
    const ctx = target?.getContext('2d')
    if (!element || !target || !ctx) return
    const ratio = window.devicePixelRatio || 1
    const key = [dark, zoom, ratio].join()
    if (painter.current?.key !== key) {
      const colors = readColors(element)
      painter.current = { key, colors, painter: new CellPainter(colors, zoom, ratio) }
    }
    const box = { left: element.scrollLeft, top: element.scrollTop, width: element.clientWidth, height: element.clientHeight }
    const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)]
    if (target.width !== width || target.height !== height) {
      target.width = width
      target.height = height
      target.style.width = `${box.width}px`
      target.style.height = `${box.height}px`
    }
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    drawScene(ctx, painter.current.painter, painter.current.colors, g, cells, view, rows.getVirtualItems(), columns.getVirtualItems(), groupCounts, box)
    const row = rows.getVirtualItems().find((r) => r.index === active.current.row)
    const column = columns.getVirtualItems().find((c) => c.index === active.current.column)
    if (row && column && element.contains(document.activeElement)) {
      ctx.strokeStyle = painter.current.colors['--accent']
      ctx.lineWidth = 2
      const least = Math.max(zoom, 6)
      ctx.strokeRect(column.start + column.size - zoom - box.left - 1, row.start + (row.size - zoom) / 2 - box.top - 1, least + 2, least + 2)
    }
    props.onWindow?.(element, { width: g.headWidth, height: g.headHeight })
  }
  const latest = useRef(draw)
  latest.current = draw
  const showCanvas = (shown: boolean): void => {
    canvas.current?.classList.toggle('shown', shown)
    scroller.current?.classList.toggle('drawn', shown)
  }

  useEffect(() => {
    const element = scroller.current!
    let frame = 0
    let timer: ReturnType<typeof setTimeout> | undefined
    const rest = (): void => {
      scrolling.current = false
      rerender()
    }
    const onScroll = (): void => {
      if (moved.current) {
        moved.current = false // the focus moved on: its elements are drawn at once
        rerender()
        return
      }
      scrolling.current = true
      showCanvas(true)
      cancelAnimationFrame(frame)
      frame = requestAnimationFrame(() => latest.current())
      clearTimeout(timer)
      timer = setTimeout(rest, restMilliseconds)
    }
    element.addEventListener('scroll', onScroll, { capture: true, passive: true })
    const resize = new ResizeObserver(() => latest.current())
    resize.observe(element)
    return () => {
      element.removeEventListener('scroll', onScroll, { capture: true })
      resize.disconnect()
      cancelAnimationFrame(frame)
      clearTimeout(timer)
    }
  }, [])
  useLayoutEffect(() => {
    showCanvas(scrolling.current || drawn)
    if (scrolling.current || drawn) draw()
    else props.onWindow?.(scroller.current!, { width: g.headWidth, height: g.headHeight })
    // An element that is moved or removed loses the focus: the cell in its place gets it.
    if (focusNext.current || (hadFocus && !scroller.current?.contains(document.activeElement))) {
      focusNext.current = false
      scroller.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus({ preventScroll: true })
    }
  })

  const goTo = (next: Position): void => {
    active.current = clampPosition(next, view)
    pointed.value = active.current
    focusNext.current = true
    moved.current = true
    if (active.current.row >= 0) rows.scrollToIndex(active.current.row)
    if (active.current.column >= 0) columns.scrollToIndex(active.current.column)
    rerender()
  }
  const open = (at: Position): void => {
    const row = view.rows[at.row]
    const column = view.columns[at.column]
    if (row?.kind === 'group') props.onToggle(row.name)
    else if (row && column) props.onOpen(row, column)
    else if (row) props.onOpenCluster(row.name)
    else if (column) props.onOpenImage(column.image)
  }
  const onKeyDown = (event: KeyboardEvent): void => {
    const action = actionOfKey(event)
    if (action === undefined) return
    if (action === 'zoomIn' || action === 'zoomOut') {
      event.preventDefault()
      focusNext.current = true
      props.onZoom(action === 'zoomOut' ? -1 : 1)
      return
    }
    if (action === 'open') {
      event.preventDefault()
      open(active.current)
      return
    }
    const page = Math.max(1, Math.floor(((scroller.current?.clientHeight ?? 0) - g.headHeight) / zoom) - 1)
    const next = moveInGrid(active.current, event.key, event.ctrlKey, view.rows.length, view.columns.length, page)
    if (!next) return
    event.preventDefault()
    goTo(next)
  }
  const locate = (event: MouseEvent): Position | undefined => {
    const element = scroller.current
    if (!element) return undefined
    const frame = element.getBoundingClientRect()
    const x = event.clientX - frame.left - element.clientLeft
    const y = event.clientY - frame.top - element.clientTop
    const row = y < g.headHeight ? -1 : indexAt(rows, y + element.scrollTop)
    const column = x < g.headWidth ? -1 : indexAt(columns, x + element.scrollLeft)
    if (row === undefined || column === undefined) return row !== undefined && view.rows[row]?.kind === 'group' ? { row, column: -1 } : undefined
    return { row, column }
  }

  const column = (i: number): string => nameOfImage(cells.images[view.columns[i]!.image]!)
  const columnsKey = `${columnItems[0]?.start}:${columnItems.at(-1)?.index}:${cellColumns.length}`
  return (
    <div
      ref={scroller}
      class="matrix"
      role="grid"
      aria-label={props.label}
      aria-rowcount={view.rows.length + 1}
      aria-colcount={view.columns.length + 1}
      style={{ '--zoom': `${zoom}px`, '--head-width': `${g.headWidth}px`, '--head-height': `${g.headHeight}px`, '--row-font': `${rowFontOf(zoom)}px`, '--column-font': `${columnFont(zoom)}px` }}
      data-signs={zoom >= signZoom ? 'yes' : 'no'}
      onKeyDown={onKeyDown}
      onMouseMove={(event) => (pointed.value = locate(event))}
      onMouseLeave={() => (pointed.value = undefined)}
      onFocusIn={() => (pointed.value = active.current)}
      onClick={(event) => {
        if ((event.target as Element).closest('a') && (event.ctrlKey || event.metaKey)) return
        const at = locate(event)
        if (!at) return
        event.preventDefault()
        active.current = clampPosition(at, view)
        focusNext.current = true
        rerender()
        open(at)
      }}
    >
      <div class="matrix-canvas" role="presentation">
        <canvas ref={canvas} aria-hidden="true" />
      </div>
      <div class="matrix-space" role="presentation" style={{ width: `${Math.max(columns.getTotalSize(), g.headWidth)}px`, height: `${rows.getTotalSize()}px` }}>
        <div class={active.current.row === -1 ? 'matrix-head has-active' : 'matrix-head'} role="row" aria-rowindex={1}>
          <div class="matrix-corner" role="columnheader" aria-colindex={1}>
            <span class="visually-hidden">Cluster</span>
          </div>
          {(zoom >= signZoom ? columnItems : columnItems.filter((c) => c.index === active.current.column)).map((c) => {
            const image = cells.images[view.columns[c.index]!.image]!
            return (
              <div key={c.index} class={image.current || image.source ? 'matrix-column' : 'matrix-column former'} role="columnheader" aria-colindex={c.index + 2} title={column(c.index)} tabIndex={active.current.row === -1 && active.current.column === c.index ? 0 : -1} style={{ left: `${c.start + c.size - zoom}px` }}>
                <span>{column(c.index)}</span>
              </div>
            )
          })}
        </div>
        {cellRows.map((r) => (
          <GridRow
            key={r.index}
            index={r.index}
            row={view.rows[r.index]!}
            top={r.start}
            height={r.size}
            zoom={zoom}
            items={cellColumns}
            itemsKey={columnsKey}
            activeColumn={active.current.row === r.index ? active.current.column : undefined}
            counts={groupCounts.get(r.index)}
            cells={cells}
            view={view}
          />
        ))}
      </div>
    </div>
  )
}

function indexAt(virtualizer: Virtualizer<HTMLDivElement, Element>, offset: number): number | undefined {
  const item: VirtualItem | undefined = virtualizer.getVirtualItemForOffset(offset)
  return item && offset >= item.start && offset < item.end ? item.index : undefined
}

function clampPosition(at: Position, view: View): Position {
  const row = Math.min(Math.max(at.row, -1), view.rows.length - 1)
  const column = Math.min(Math.max(at.column, row === -1 ? 0 : -1), view.columns.length - 1)
  return { row, column }
}

function gapOf(zoom: number): number {
  return zoom >= leastZoom ? Math.round(zoom / 4) : 0
}

const rowFontOf = (zoom: number): number => (zoom >= 18 ? 13 : zoom >= 14 ? 11 : 10)

function geometryOf(cells: Cells, view: View, zoom: number): Geometry {
  const narrow = window.innerWidth < 640
  const longestRow = view.rows.reduce((n, r) => Math.max(n, r.name.length + (r.kind === 'group' ? 6 : 4)), 8)
  const longestColumn = view.columns.reduce((n, c) => Math.max(n, nameOfImage(cells.images[c.image]!).length), 4)
  return {
    zoom,
    headWidth: Math.round(Math.min(narrow ? 120 : 220, Math.max(88, longestRow * 7.4 + 16))),
    headHeight: zoom >= signZoom ? Math.round(Math.min(narrow ? 96 : 150, Math.max(56, longestColumn * 6.6 + 16))) : 56,
  }
}
