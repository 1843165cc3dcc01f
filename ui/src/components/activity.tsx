// Imports that run and images that wait, of the fleet or of one cluster.
import type { Transfer } from '../api'
import { formatBytes, formatClock, formatRate, now, plainText } from '../format'
import { hrefWith, href } from '../route'
import { describeExpectation, describeHolders, describeProgress, sayWithin } from '../transfers'
import { whyOf } from '../whyaddress'
import { Meter } from './panel'
import { Sign } from './sign'
import { Table, type Column } from './table'
import { Age } from './time'

const keyOf = (t: Transfer): string => `${t.cluster}/${t.namespace}/${t.name}`

function clusterColumn(): Column<Transfer> {
  return { title: 'Cluster', cell: (t) => <a href={href('clusters', t.cluster)}>{plainText(t.cluster, 60)}</a> }
}

/** An image of a cluster leads to why it is where it is. */
function ImageLink({ of: t }: { of: Transfer }) {
  return (
    <a href={hrefWith({ why: whyOf(t.cluster, t.namespace, t.name) })}>
      <span class="muted">{plainText(t.namespace, 60)}/</span>
      {plainText(t.name, 80)}
    </a>
  )
}

function Stale({ of: t }: { of: Transfer }) {
  if (!t.unknown) return null
  return (
    <>
      {' '}
      <Sign tone="unknown">{t.unknown}</Sign>
    </>
  )
}

/** RunningTable has the imports that run. With cluster, they are all of one. */
export function RunningTable({ rows, ofCluster, empty }: { rows: readonly Transfer[]; ofCluster?: boolean; empty: string }) {
  const columns: Column<Transfer>[] = [
    ...(ofCluster ? [] : [clusterColumn()]),
    { title: 'Image', cell: (t) => <><ImageLink of={t} /><Stale of={t} /></> },
    { title: 'Done', cell: (t) => <Progress of={t} /> },
    { title: 'Rate', right: true, cell: (t) => <Rate of={t} /> },
    { title: 'Left', right: true, cell: (t) => <Left of={t} /> },
    { title: 'Attempt', right: true, wide: true, cell: (t) => (t.attempt ? <span class={t.attempt > 1 ? '' : 'muted'}>{t.maxAttempts ? `${t.attempt} of ${t.maxAttempts}` : t.attempt}</span> : <span class="muted">–</span>) },
    { title: 'Source', wide: true, cell: (t) => <span class="muted">{plainText(t.source ?? 'unknown', 40)}</span> },
  ]
  return <Table caption="Imports that run" columns={columns} rows={rows} keyOf={keyOf} empty={empty} />
}

function Progress({ of: t }: { of: Transfer }) {
  const { share, text } = describeProgress(t)
  return (
    <span class="progress">
      {share !== undefined && <Meter value={share} max={1} label={`Done: ${text}`} />}
      <span class="nowrap">{text}</span>
    </span>
  )
}

function Rate({ of: t }: { of: Transfer }) {
  if (t.unknown || t.bytesPerSecond === undefined) return <span class="muted">unknown</span>
  if (!t.slow) return <span class="nowrap">{formatRate(t.bytesPerSecond)}</span>
  return (
    <span class="slow">
      <Sign tone="attention">{formatRate(t.bytesPerSecond)}</Sign>
      <span class="slow-why muted">slow: under half of the slowest fifth from {plainText(t.source ?? 'its source', 40)}</span>
    </span>
  )
}

function Left({ of: t }: { of: Transfer }) {
  const said = describeExpectation(t.expected, now.value)
  if (said.left === undefined) return <span class="muted no-estimate">no estimate: {plainText(said.why ?? '', 200)}</span>
  return (
    <span class="expected">
      <span class="nowrap">{said.left}</span>
      <span class="muted nowrap">{said.range ?? said.at}</span>
    </span>
  )
}

/** QueuedTable has the images that wait, by when they are expected. */
export function QueuedTable({ rows, ofCluster, empty }: { rows: readonly Transfer[]; ofCluster?: boolean; empty: string }) {
  const columns: Column<Transfer>[] = [
    { title: 'Expected', cell: (t) => <Expected of={t} /> },
    ...(ofCluster ? [] : [clusterColumn()]),
    { title: 'Image', cell: (t) => <><ImageLink of={t} /><Stale of={t} /></> },
    { title: 'Size', right: true, wide: true, cell: (t) => <Size of={t} /> },
    { title: 'Place', right: true, wide: true, cell: (t) => t.position ?? <span class="muted">–</span> },
    { title: 'Why it waits', cell: (t) => <Wait of={t} /> },
  ]
  return <Table caption="Images that wait for a slot" columns={columns} rows={rows} keyOf={keyOf} empty={empty} />
}

function Expected({ of: t }: { of: Transfer }) {
  const said = describeExpectation(t.expected, now.value)
  if (said.at === undefined) {
    return (
      <span class="expected">
        <span aria-hidden="true">–</span>
        <span class="muted no-estimate">no estimate: {plainText(said.why ?? '', 200)}</span>
      </span>
    )
  }
  return (
    <span class="expected">
      <strong class="nowrap">{said.at}</strong>
      <span class="muted nowrap">{said.range ?? sayWithin(said.left)}</span>
    </span>
  )
}

function Size({ of: t }: { of: Transfer }) {
  if (t.bytes === undefined) return <span class="muted">unknown</span>
  return <span class="nowrap">{t.atMost ? `≤ ${formatBytes(t.bytes)}` : formatBytes(t.bytes)}</span>
}

function Wait({ of: t }: { of: Transfer }) {
  const holders = describeHolders(t)
  return (
    <span class="wait">
      <span>
        {plainText(t.reason ?? 'unknown', 60)}
        {t.notBefore && <> until {formatClock(t.notBefore)}</>}
        {t.queuedAt && (
          <span class="muted">
            {' '}
            for <Age at={t.queuedAt} />
          </span>
        )}
      </span>
      {holders && <Sign tone="attention">{holders} for it</Sign>}
    </span>
  )
}
