// Images × clusters, one byte a cell, as api/readapi/matrix.go describes it: the codec, changes,
// and what is shown of it. Rows of the answer are images; rows of the page are clusters.
import { CellAbsent, CellBehind, CellFailed, CellLeaving, CellMessage, CellOther, CellPlanned, CellQueued, CellReady, CellReferenced, CellStale, CellSyncing, CellUnknown, type Matrix, type MatrixColumn, type MatrixRow } from './api'

/** A whole matrix, decoded. */
export interface Cells {
  seq: string
  images: MatrixRow[]
  clusters: MatrixColumn[]
  labels: string[]
  /** The cell of an image and a cluster is at image × clusters + cluster. */
  bytes: Uint8Array
}

export class OtherMatrixError extends Error {}

/** Makes a matrix the one that an answer says: the answer itself, or with its changes. What it was is not changed. */
export function applyMatrix(before: Cells | undefined, answer: Matrix): Cells {
  const cells = decodeBytes(answer.cells)
  const changed = answer.changed ?? []
  if (!answer.since) {
    const images = answer.rows ?? []
    const clusters = answer.cols ?? []
    if (cells.length !== images.length * clusters.length) throw new OtherMatrixError(`the matrix has ${cells.length} cells for ${images.length} rows and ${clusters.length} columns`)
    return { seq: answer.seq, images, clusters, labels: answer.labels ?? [], bytes: cells }
  }
  if (cells.length !== changed.length) throw new OtherMatrixError(`the matrix has ${cells.length} cells for ${changed.length} changes`)
  if (!before || before.seq !== answer.since) throw new OtherMatrixError('the changes are of another matrix')
  const bytes = before.bytes.slice()
  changed.forEach((at, i) => {
    if (!Number.isInteger(at) || at < 0 || at >= bytes.length) throw new OtherMatrixError(`there is no cell ${at}`)
    bytes[at] = cells[i]!
  })
  const others = answer.cols?.length === before.clusters.length && before.clusters.length > 0
  return { ...before, seq: answer.seq, bytes, clusters: others ? answer.cols! : before.clusters, labels: others ? (answer.labels ?? []) : before.labels }
}

function decodeBytes(base64: string): Uint8Array {
  const text = atob(base64 ?? '')
  const bytes = new Uint8Array(text.length)
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i)
  return bytes
}

/** How a cell is drawn. Each look has its sign, its colour and its words. */
export type Look = 'ready' | 'absent' | 'planned' | 'queued' | 'syncing' | 'failed' | 'leaving' | 'other' | 'unknown' | 'stalled'

const looks: Record<number, Look> = {
  [CellUnknown]: 'unknown', [CellAbsent]: 'absent', [CellPlanned]: 'planned', [CellQueued]: 'queued', [CellSyncing]: 'syncing',
  [CellReady]: 'ready', [CellFailed]: 'failed', [CellLeaving]: 'leaving', [CellOther]: 'other',
}

/** Returns the look of a cell. A state of a later hub is other; one that waits with a message waits for a person. */
export function lookOf(cell: number): Look {
  const look = looks[cell & 0xf] ?? 'other'
  return cell & CellMessage && (look === 'queued' || look === 'planned' || look === 'syncing') ? 'stalled' : look
}

export const lookWords: Record<Look, string> = {
  failed: 'Failed', stalled: 'Waits for a person', syncing: 'Importing', queued: 'Queued', planned: 'Planned',
  leaving: 'Leaving', unknown: 'Unknown', other: 'In another phase', ready: 'Ready', absent: 'Not meant to be here',
}

/** The signs of what is not ready, for counts of them. */
export const lookSigns: Partial<Record<Look, string>> = { failed: '✗', stalled: '!', unknown: '?', syncing: '●', queued: '◌', planned: '○', leaving: '−', other: '…' }

/** Looks from the worst on: a cell that stands for several shows the first. */
export const worstFirst: Look[] = ['failed', 'stalled', 'unknown', 'syncing', 'queued', 'planned', 'leaving', 'other', 'ready', 'absent']

/** Says a cell in words. */
export function describeCell(cell: number): string {
  const words = [lookWords[lookOf(cell)]]
  if (cell & CellBehind) words.push('behind')
  if (cell & CellReferenced) words.push('machines need it')
  if (cell & CellStale) words.push('may have changed since the last report')
  return words.join(', ')
}

export const isStale = (cell: number): boolean => (cell & CellStale) !== 0
export const isBehind = (cell: number): boolean => (cell & CellBehind) !== 0
export const isReferenced = (cell: number): boolean => (cell & CellReferenced) !== 0

export type Show = 'all' | 'failing' | 'moving' | 'behind' | 'unknown'
export const shows: Show[] = ['all', 'failing', 'moving', 'behind', 'unknown']

/** Reports whether a cell is what is asked for. */
export function isShown(cell: number, show: Show): boolean {
  const look = lookOf(cell)
  switch (show) {
    case 'all':
      return true
    case 'failing':
      return look === 'failed' || look === 'stalled'
    case 'moving':
      return look === 'syncing' || look === 'queued' || look === 'planned' || look === 'leaving'
    case 'behind':
      return isBehind(cell)
    case 'unknown':
      return look === 'unknown' || isStale(cell)
  }
}

export interface Filter {
  show: Show
  /** Parts of names; empty for all. */
  clusters: string
  images: string
  /** Groups that are collapsed. */
  closed: ReadonlySet<string>
  grouped: boolean
}

/** A row of the page: a group's heading, or a cluster by its index. */
export type Row = { kind: 'group'; name: string; members: number[]; closed: boolean } | { kind: 'cluster'; cluster: number; name: string }

/** A column of the page: an image by its index. First: another FleetDiskImage begins. */
export interface Column {
  image: number
  first: boolean
}

export interface View {
  rows: Row[]
  columns: Column[]
  /** How many clusters are shown, also in collapsed groups. */
  clusters: number
}

/** Stands in the address for the group of clusters without the label: no label has such a value. */
const unlabelled = '-'

/** Reads which groups are collapsed. */
export function parseClosed(text: string): Set<string> {
  return new Set(text.split(',').filter(Boolean).map((name) => (name === unlabelled ? '' : name)))
}

/** Returns the text that parseClosed reads. */
export function formatClosed(closed: ReadonlySet<string>): string {
  return [...closed].map((name) => name || unlabelled).join(',')
}

/** Returns what is shown of a matrix. */
export function viewOf(m: Cells, filter: Filter): View {
  const width = m.clusters.length
  const clusterWords = wordsOf(filter.clusters)
  const imageWords = wordsOf(filter.images)
  let images = m.images.map((_, i) => i).filter((i) => imageWords.every((w) => nameOfImage(m.images[i]!).toLowerCase().includes(w)))
  let clusters = m.clusters.map((_, i) => i).filter((i) => clusterWords.every((w) => m.clusters[i]!.cluster.toLowerCase().includes(w)))
  if (filter.show !== 'all') {
    const rows = new Set<number>()
    const columns = new Set<number>()
    for (const image of images) {
      for (const cluster of clusters) {
        if (isShown(m.bytes[image * width + cluster]!, filter.show)) {
          rows.add(cluster)
          columns.add(image)
        }
      }
    }
    images = images.filter((i) => columns.has(i))
    clusters = clusters.filter((i) => rows.has(i))
  }
  const columns = images.map((image, at) => ({ image, first: at > 0 && m.images[images[at - 1]!]!.image !== m.images[image]!.image }))
  return { rows: filter.grouped ? groupRows(m, clusters, filter.closed) : clusters.map((cluster) => clusterRow(m, cluster)), columns, clusters: clusters.length }
}

function clusterRow(m: Cells, cluster: number): Row {
  return { kind: 'cluster', cluster, name: m.clusters[cluster]!.cluster }
}

function groupRows(m: Cells, clusters: number[], closed: ReadonlySet<string>): Row[] {
  const groups = new Map<string, number[]>()
  for (const cluster of clusters) {
    const name = m.clusters[cluster]!.group ?? ''
    const members = groups.get(name)
    if (members) members.push(cluster)
    else groups.set(name, [cluster])
  }
  // Clusters without the label come last.
  const names = [...groups.keys()].sort((a, b) => (a === '' ? 1 : b === '' ? -1 : a < b ? -1 : 1))
  return names.flatMap((name): Row[] => {
    const members = groups.get(name)!
    const heading: Row = { kind: 'group', name, members, closed: closed.has(name) }
    return heading.closed ? [heading] : [heading, ...members.map((cluster) => clusterRow(m, cluster))]
  })
}

function wordsOf(text: string): string[] {
  return text.toLowerCase().split(/\s+/).filter((w) => w !== '')
}

/** Names an image, as in ubuntu 2.1.0. */
export function nameOfImage(row: MatrixRow): string {
  return row.source ?? `${row.image ?? ''} ${row.version ?? ''}`.trim()
}

export type Counts = Partial<Record<Look, number>>

/** Counts the looks of clusters × images. */
export function countLooks(m: Cells, clusters: readonly number[], columns: readonly Column[]): Counts {
  const byByte = new Uint32Array(256)
  const width = m.clusters.length
  for (const { image } of columns) {
    for (const cluster of clusters) byByte[m.bytes[image * width + cluster]!]!++
  }
  const counts: Counts = {}
  byByte.forEach((n, cell) => {
    if (n > 0) counts[lookOf(cell)] = (counts[lookOf(cell)] ?? 0) + n
  })
  return counts
}

/** Returns the worst of counted looks, and how many have it. */
export function worstOf(counts: Counts): { look: Look; count: number } {
  const look = worstFirst.find((l) => counts[l]) ?? 'absent'
  return { look, count: counts[look] ?? 0 }
}

/** The byte of the cell of a row and a column of the page; undefined for a group's heading. */
export function cellAt(m: Cells, row: Row, column: Column): number | undefined {
  return row.kind === 'cluster' ? m.bytes[column.image * m.clusters.length + row.cluster] : undefined
}

/** Returns clusters that have something which is not ready, the worst first: for screens on which a matrix is not readable. */
export function listNotReady(m: Cells, view: View): { cluster: number; cells: { image: number; cell: number }[] }[] {
  const width = m.clusters.length
  const rows = view.rows.flatMap((r) => (r.kind === 'group' ? (r.closed ? r.members : []) : [r.cluster]))
  const rank = (cell: number): number => worstFirst.indexOf(lookOf(cell))
  return rows
    .map((cluster) => ({
      cluster,
      cells: view.columns
        .map(({ image }) => ({ image, cell: m.bytes[image * width + cluster]! }))
        .filter(({ cell }) => !['ready', 'absent'].includes(lookOf(cell)) || isBehind(cell))
        .sort((a, b) => rank(a.cell) - rank(b.cell) || a.image - b.image),
    }))
    .filter((r) => r.cells.length > 0)
    .sort((a, b) => rank(a.cells[0]!.cell) - rank(b.cells[0]!.cell) || a.cluster - b.cluster)
}

const bytes: Record<Look, number> = { unknown: 0, absent: 1, planned: 2, queued: 3, syncing: 4, ready: 5, failed: 6, leaving: 7, other: 8, stalled: 3 | 128 }

/** Returns a cell that has a look. */
export function byteOf(look: Look): number {
  return bytes[look]
}
