// The matrix with what is chosen of it. The address holds the choice.
import { useSignal, type Signal } from '@preact/signals'
import { useCallback, useMemo } from 'preact/hooks'
import type { Matrix } from '../api'
import { announce } from '../announce'
import { formatCount, formatDoing, formatNumber, plainText } from '../format'
import { publishCommand } from '../listcommands'
import { applyMatrix, cellAt, countLooks, describeCell, formatClosed, listNotReady, lookOf, lookWords, nameOfImage, parseClosed, shows, viewOf, worstFirst, type Cells, type Filter, type Show, type View } from '../matrix'
import { useFolded, type Fold } from '../query'
import { isMatrixTooLarge } from '../refused'
import { href, hrefWith, navigate, param, setParams } from '../route'
import { whyOf } from '../whyaddress'
import { Command } from './command'
import { shellWord } from '../shellword'
import { MatrixGrid, type Pointed } from './matrixgrid'
import { CountSigns, sayCounts } from './matrixrow'
import { Minimap } from './minimap'
import { Panel } from './panel'
import { Empty, Shown } from './states'
import { Age } from './time'
import { TypedFilter } from './typedfilter'

const zooms = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]
const usualZoom = 20
/** A matrix of fewer cells needs no map. */
const leastMapped = 2000
const fold: Fold<Cells> = { since: (cells) => cells.seq, apply: (before, answer) => applyMatrix(before, answer as Matrix) }

const showWords: Record<Show, string> = { all: 'All', failing: 'Failing', moving: 'Moving', behind: 'Behind', unknown: 'Unknown' }

export function MatrixPanel() {
  const rows = param('columns') === 'source' ? 'source' : 'fdi'
  const selector = rows === 'source' ? param('selector') : ''
  const matrix = useFolded<Cells>('matrix', { rows, selector, group: param('group') }, ['images', 'rollouts', 'members'], fold, 2000)
  return (
    <Panel title="Clusters and images" aside={<Drawing />}>
      {rows === 'source' && <SourceChoices isTooLarge={isMatrixTooLarge(matrix.value.error)} />}
      <Shown answer={matrix} lines={12}>
        {(cells) => <Chosen cells={cells} />}
      </Shown>
    </Panel>
  )
}

/** A fleet may have more sources than a matrix has rows: then a part of its clusters is chosen. */
function SourceChoices({ isTooLarge }: { isTooLarge: boolean }) {
  return (
    <div class="filters matrix-choices">
      <TypedFilter name="selector" label="Clusters by selector" placeholder="region=nordics" starts={[]} />
      {isTooLarge && (
        <>
          <a href={hrefWith({ columns: undefined, selector: undefined, image: undefined })}>Show versions</a>
          <a href={href('clusters') + '?sort=images'}>Clusters by number of images</a>
        </>
      )}
    </div>
  )
}

function readZoom(): number {
  return zooms.find((z) => z === Number(param('zoom'))) ?? usualZoom
}

/** On a narrow screen, a list of what is not ready is more readable. */
function isList(): boolean {
  return param('view', window.innerWidth < 640 ? 'list' : 'matrix') === 'list'
}

function readFilter(): Filter {
  const show = shows.find((s) => s === param('show')) ?? 'all'
  return { show, clusters: param('cluster'), images: param('image'), closed: parseClosed(param('closed')), grouped: param('group') !== '' }
}

function Chosen({ cells }: { cells: Cells }) {
  const filter = readFilter()
  const key = [filter.show, filter.clusters, filter.images, param('closed'), filter.grouped].join('\n')
  const view = useMemo(() => viewOf(cells, filter), [cells.images, cells.clusters, filter.show === 'all' ? undefined : cells, key])
  const zoom = readZoom()
  const pointed = useSignal<Pointed | undefined>(undefined)
  const asList = isList()
  const step = (by: 1 | -1): void => setParams({ zoom: String(zooms[Math.max(0, Math.min(zooms.length - 1, zooms.indexOf(zoom) + by))]) })
  return (
    <>
      <Choices cells={cells} filter={filter} />
      {cells.clusters.length === 0 ? (
        <Empty title={param('selector') ? 'No cluster matches this selector.' : 'There is no cluster.'} />
      ) : cells.images.length === 0 && param('columns') === 'source' ? (
        <Empty title={cells.clusters.some((c) => c.unknown) ? 'No source is known of these clusters.' : 'These clusters have reported no image.'} />
      ) : cells.images.length === 0 ? (
        <Empty title="There is no version of an image yet.">
          <Command text={publishCommand} />
        </Empty>
      ) : view.clusters === 0 || view.columns.length === 0 ? (
        <Empty title="Nothing of the fleet is like that.">
          <p>
            <a href={hrefWith({ show: undefined, cluster: undefined, image: undefined })}>Show all</a>
          </p>
        </Empty>
      ) : asList ? (
        <NotReadyList cells={cells} view={view} />
      ) : (
        <Drawn cells={cells} view={view} zoom={zoom} pointed={pointed} step={step} />
      )}
    </>
  )
}

/** How it is drawn. */
function Drawing() {
  const zoom = readZoom()
  const asList = isList()
  return (
    <div class="filters matrix-choices">
      <div class="segments " role="group" aria-label="Drawn as">
        <a href={hrefWith({ view: 'matrix' })} aria-current={asList ? undefined : 'true'}>
          Matrix
        </a>
        <a href={hrefWith({ view: 'list' })} aria-current={asList ? 'true' : undefined}>
          List
        </a>
      </div>
      {!asList && (
        <label class="zoom">
          Size
          <input type="range" min={0} max={zooms.length - 1} value={zooms.indexOf(zoom)} aria-valuetext={`${zoom} pixels`} onInput={(event) => setParams({ zoom: String(zooms[Number(event.currentTarget.value)]) })} />
        </label>
      )}
    </div>
  )
}

function Choices({ cells, filter }: { cells: Cells; filter: Filter }) {
  const group = param('group')
  const groups = group && !cells.labels.includes(group) ? [group, ...cells.labels] : cells.labels
  return (
    <div class="filters matrix-choices">
      <div class="segments" role="group" aria-label="Show">
        {shows.map((s) => (
          <a key={s} href={hrefWith({ show: s === 'all' ? undefined : s })} aria-current={filter.show === s ? 'true' : undefined}>
            {showWords[s]}
          </a>
        ))}
      </div>
      {(groups.length > 0 || group) && (
        <label>
          Group by
          <select value={group} onChange={(event) => setParams({ group: event.currentTarget.value, closed: undefined })}>
            <option value="">nothing</option>
            {groups.map((l) => (
              <option key={l}>{l}</option>
            ))}
          </select>
        </label>
      )}
      <label>
        Columns
        <select value={param('columns')} onChange={(event) => setParams({ columns: event.currentTarget.value, image: undefined, selector: undefined })}>
          <option value="">versions</option>
          <option value="source">sources</option>
        </select>
      </label>
      <input type="search" size={12} aria-label="Clusters by a part of their names" placeholder="Clusters" value={filter.clusters} onInput={(event) => setParams({ cluster: event.currentTarget.value })} />
      <input type="search" size={12} aria-label="Images by a part of their names" placeholder="Images" value={filter.images} onInput={(event) => setParams({ image: event.currentTarget.value })} />
    </div>
  )
}

/** What is seen of the matrix, as shares of the whole, and the corner in which nothing else is. */
interface Seen {
  element: HTMLElement
  corner: { width: number; height: number }
  left: number
  top: number
  width: number
  height: number
}

// The map moves with each frame of a scroll; the grid is not drawn anew for it.
function Corner({ cells, view, seen }: { cells: Cells; view: View; seen: Signal<Seen | undefined> }) {
  const now = seen.value
  if (!now || cells.bytes.length <= leastMapped || (now.width > 0.999 && now.height > 0.999)) return null
  return <Minimap cells={cells} view={view} element={now.element} seen={now} width={now.corner.width - 28} height={Math.min(96, now.corner.height - 12)} />
}

function Drawn({ cells, view, zoom, pointed, step }: { cells: Cells; view: View; zoom: number; pointed: Signal<Pointed | undefined>; step: (by: 1 | -1) => void }) {
  const seen = useSignal<Seen | undefined>(undefined)
  const onWindow = useCallback((element: HTMLElement, corner: { width: number; height: number }): void => {
    const next: Seen = { element, corner, left: element.scrollLeft / element.scrollWidth, top: element.scrollTop / element.scrollHeight, width: element.clientWidth / element.scrollWidth, height: element.clientHeight / element.scrollHeight }
    const now = seen.value
    if (!now || now.left !== next.left || now.top !== next.top || now.width !== next.width || now.height !== next.height || now.corner.width !== corner.width || now.corner.height !== corner.height) seen.value = next
  }, [])
  const open = (address: string | undefined): void => {
    if (address) navigate(hrefWith({ why: address }))
  }
  return (
    <>
      <div class="matrix-frame">
        <MatrixGrid
          label="Clusters and images"
          cells={cells}
          view={view}
          zoom={zoom}
          pointed={pointed}
          onWindow={onWindow}
          onOpen={(row, column) => {
            const image = cells.images[column.image]!
            if (row.kind !== 'cluster') return
            if (image.namespace && image.name) open(whyOf(row.name, image.namespace, image.name))
            else navigate(href('clusters', row.name))
          }}
          onOpenCluster={(cluster) => navigate(href('clusters', cluster))}
          onOpenImage={(image) => {
            const name = cells.images[image]!.image
            if (name) navigate(href('images', name))
          }}
          onToggle={(group) => {
            const closed = parseClosed(param('closed'))
            if (!closed.delete(group)) closed.add(group)
            setParams({ closed: formatClosed(closed) })
            announce(`${group || 'without'}: ${closed.has(group) ? 'collapsed' : 'expanded'}`)
          }}
          onZoom={step}
        />
        <Corner cells={cells} view={view} seen={seen} />
      </div>
      <Readout cells={cells} view={view} pointed={pointed} />
    </>
  )
}

/** Readout says in words what the pointer or the focus is on, else what the signs mean. */
function Readout({ cells, view, pointed }: { cells: Cells; view: View; pointed: Signal<Pointed | undefined> }) {
  const clusters = useMemo(() => view.rows.flatMap((r) => (r.kind === 'group' ? (r.closed ? r.members : []) : [r.cluster])), [view])
  const counts = useMemo(() => countLooks(cells, clusters, view.columns), [cells, view])
  const at = pointed.value
  const row = at && view.rows[at.row]
  const column = at && view.columns[at.column]
  if (row && column) {
    const image = cells.images[column.image]!
    const cell = cellAt(cells, row, column)
    return (
      <div class="readout">
        <p>
          <strong>{row.kind === 'cluster' ? row.name : row.name || 'without'}</strong> · {plainText(nameOfImage(image), 120)} ·{' '}
          {cell === undefined ? sayCounts(countLooks(cells, row.kind === 'group' ? row.members : [], [column])) : <span class={`text-${lookOf(cell)}`}>{describeCell(cell)}</span>}
        </p>
        {row.kind === 'cluster' && image.name && image.namespace && <Command text={`kubectl ot why image ${shellWord(image.name)} -n ${shellWord(image.namespace)} --cluster ${shellWord(row.name)}`} />}
      </div>
    )
  }
  if (row) {
    const unknown = row.kind === 'cluster' ? cells.clusters[row.cluster]!.unknown : undefined
    return (
      <div class="readout">
        <p>
          <strong>{row.name || 'without'}</strong> · {sayCounts(countLooks(cells, row.kind === 'cluster' ? [row.cluster] : row.members, view.columns))}
          {unknown && <span class="text-unknown"> · {plainText(unknown)}</span>}
        </p>
      </div>
    )
  }
  return (
    <div class="readout">
      <ul class="legend">
        {worstFirst
          .filter((l) => counts[l] && l !== 'absent')
          .map((l) => (
            <li key={l}>
              <span class={`legend-cell look-${l}`} aria-hidden="true" /> {formatNumber(counts[l]!)} {lookWords[l].toLowerCase()}
            </li>
          ))}
      </ul>
      <p class="muted">{`${formatCount(view.clusters, 'cluster')} × ${formatCount(view.columns.length, 'image')}`}</p>
    </div>
  )
}

const mostListed = 25
const mostNamed = 3

function NotReadyList({ cells, view }: { cells: Cells; view: View }) {
  const all = useMemo(() => listNotReady(cells, view), [cells, view])
  if (all.length === 0) return <Empty title={`All is ready in ${formatCount(view.clusters, 'cluster')}.`} />
  return (
    <>
      <ul class="not-ready">
        {all.slice(0, mostListed).map(({ cluster, cells: some }) => {
          const { cluster: name, unknown, silentSince } = cells.clusters[cluster]!
          return (
            <li key={name}>
              <div class="not-ready-head">
                <span>
                  <a href={href('clusters', name)}>{name}</a>{' '}
                  {unknown && (
                    <span class="muted">
                      as of {silentSince ? <Age at={silentSince} ago /> : 'an unknown time'}
                    </span>
                  )}
                </span>
                <CountSigns counts={countLooks(cells, [cluster], view.columns)} />
              </div>
              <ul>
                {some.slice(0, mostNamed).map(({ image, cell }) => {
                  const row = cells.images[image]!
                  const text = nameOfImage(row)
                  return (
                    <li key={image}>
                      <span class={`legend-cell look-${lookOf(cell)}`} aria-hidden="true" />
                      {row.namespace && row.name ? <a href={hrefWith({ why: whyOf(name, row.namespace, row.name) })}>{text}</a> : <span>{text}</span>}
                      <span class="muted">{describeCell(cell)}</span>
                    </li>
                  )
                })}
                {some.length > mostNamed && <li class="muted">and {some.length - mostNamed} more</li>}
              </ul>
            </li>
          )
        })}
      </ul>
      {all.length > mostListed && <p class="muted">{formatDoing(all.length - mostListed, 'more cluster', 'has', 'have')} something that is not ready. Filter by name, or by what is failing.</p>}
    </>
  )
}
