// A row of the matrix. It is drawn anew only where something of it changed.
import { Component } from 'preact'
import { formatAge } from '../format'
import { cellAt, countLooks, describeCell, isBehind, isReferenced, isStale, lookOf, lookSigns, lookWords, nameOfImage, worstFirst, worstOf, type Cells, type Counts, type Row, type View } from '../matrix'
import { href } from '../route'
import type { Item } from './matrixcanvas'

interface Props {
  index: number
  row: Row
  top: number
  height: number
  zoom: number
  items: readonly Item[]
  itemsKey: string
  /** The column that has the focus; -1 is the heading. */
  activeColumn: number | undefined
  counts: Counts | undefined
  cells: Cells
  view: View
}

/** The cells of a row as text, with the images that they are of: two rows with the same text look and read the same. */
function textOf({ row, items, cells, view, counts }: Props): string {
  const of = items.map((c) => view.columns[c.index]!.image).join() + ' '
  if (row.kind === 'group') return `${row.closed ? of : ''}${row.closed} ${row.members.length} ${JSON.stringify(counts)} ${row.closed ? items.map((c) => JSON.stringify(countLooks(cells, row.members, [view.columns[c.index]!]))).join() : ''}`
  return of + String.fromCharCode(...items.map((c) => cellAt(cells, row, view.columns[c.index]!)!))
}

export class GridRow extends Component<Props> {
  private drawn = ''

  override shouldComponentUpdate(next: Props): boolean {
    const now = this.props
    return (
      next.top !== now.top || next.height !== now.height || next.zoom !== now.zoom || next.itemsKey !== now.itemsKey || next.activeColumn !== now.activeColumn ||
      next.row.name !== now.row.name || next.cells.images !== now.cells.images || next.cells.clusters !== now.cells.clusters || next.view.columns.length !== now.view.columns.length || textOf(next) !== this.drawn
    )
  }

  override render(props: Props) {
    this.drawn = textOf(props)
    const { row, index, top, height, activeColumn } = props
    const tabIndex = activeColumn === -1 ? 0 : -1
    return (
      <div class={`matrix-row${row.kind === 'group' ? ' matrix-group' : ''}${activeColumn === undefined ? '' : ' has-active'}`} role="row" aria-rowindex={index + 2} style={{ transform: `translateY(${top}px)`, height: `${height}px` }}>
        {row.kind === 'group' ? <GroupHeading row={row} counts={props.counts ?? {}} tabIndex={tabIndex} /> : <ClusterHeading row={row} cells={props.cells} tabIndex={tabIndex} />}
        {(row.kind === 'cluster' || row.closed) && props.items.map((c) => <GridCell key={c.index} {...props} item={c} active={activeColumn === c.index} />)}
        {row.kind === 'group' && !row.closed && activeColumn !== undefined && activeColumn >= 0 && <div role="gridcell" class="matrix-cell" tabIndex={0} aria-colindex={activeColumn + 2} aria-label={`${row.name}: ${sayCounts(props.counts ?? {})}`} style={{ left: `${props.items.find((c) => c.index === activeColumn)?.start ?? 0}px` }} />}
      </div>
    )
  }
}

function GridCell({ row, item, cells, view, zoom, active }: Props & { item: Item; active: boolean }) {
  const column = view.columns[item.index]!
  const name = nameOfImage(cells.images[column.image]!)
  const frame = { role: 'gridcell', 'aria-colindex': item.index + 2, tabIndex: active ? 0 : -1, style: { left: `${item.start + item.size - zoom}px` } } as const
  if (row.kind === 'group') {
    const counts = countLooks(cells, row.members, [column])
    const { look, count } = worstOf(counts)
    const text = look !== 'ready' && look !== 'absent' && zoom >= 16 && count > 1 ? String(Math.min(count, 99)) : undefined
    return (
      <div {...frame} class={`matrix-cell look-${look}${text ? ' counted' : ''}`} data-count={text} aria-label={`${name}: ${sayCounts(counts)}`} />
    )
  }
  const cell = cellAt(cells, row, column)!
  return <div {...frame} class={`matrix-cell look-${lookOf(cell)}${isStale(cell) ? ' is-stale' : ''}${isBehind(cell) ? ' is-behind' : ''}${isReferenced(cell) ? ' is-referenced' : ''}`} aria-label={`${name}: ${describeCell(cell)}`} />
}

function ClusterHeading({ row, cells, tabIndex }: { row: Row & { kind: 'cluster' }; cells: Cells; tabIndex: number }) {
  const { cluster, unknown, silentSince, state } = cells.clusters[row.cluster]!
  return (
    <div class={unknown ? 'matrix-name is-stale' : 'matrix-name'} role="rowheader" aria-colindex={1} tabIndex={tabIndex} title={unknown || state !== 'Ready' ? `${cluster}: ${unknown ?? state}` : cluster}>
      <a href={href('clusters', cluster)} tabIndex={-1}>
        {cluster}
      </a>
      {unknown && <span class="matrix-age">{silentSince ? formatAge(silentSince) : '?'}</span>}
      {(state === 'Stalled' || state === 'Quarantined') && (
        <span class="text-stalled" aria-hidden="true">
          !
        </span>
      )}
      <span class="visually-hidden">{unknown ?? state}</span>
    </div>
  )
}

function GroupHeading({ row, counts, tabIndex }: { row: Row & { kind: 'group' }; counts: Counts; tabIndex: number }) {
  return (
    <div class="matrix-name" role="rowheader" aria-colindex={1} aria-expanded={!row.closed} tabIndex={tabIndex} title={row.name || 'clusters without the label'}>
      <span class="matrix-fold" aria-hidden="true" />
      <span class="matrix-group-name">{row.name || 'without'}</span>
      <span class="muted">{row.members.length}</span>
      <span class="visually-hidden">clusters: {sayCounts(counts)}</span>
      {!row.closed && <CountSigns counts={counts} />}
    </div>
  )
}


/** CountSigns shows how many cells are not ready, by look. */
export function CountSigns({ counts }: { counts: Counts }) {
  return (
    <span class="count-signs" aria-hidden="true">
      {worstFirst.map((look) => (lookSigns[look] && counts[look] ? <span key={look} class={`count-sign text-${look}`}>{`${lookSigns[look]} ${counts[look]}`}</span> : null))}
    </span>
  )
}

/** Says counts in words, as in 2 failed, 37 ready. */
export function sayCounts(counts: Counts): string {
  return worstFirst
    .filter((l) => counts[l] && l !== 'absent')
    .map((l) => `${counts[l]} ${lookWords[l].toLowerCase()}`)
    .join(', ') || 'nothing'
}
