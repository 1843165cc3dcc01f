// What stays and why, storage without an image, and clusters that nothing is known of: row by row, as the report has them.
import type { PruneReport, PruneRow, PruneRows } from '../../api'
import { Command } from '../../components/command'
import { Chip } from '../../components/pager'
import { Sign } from '../../components/sign'
import { Shown } from '../../components/states'
import { Table, type Column } from '../../components/table'
import { formatBytes, formatNumber, plainText } from '../../format'
import { keptMeanings } from '../../prunes'
import { useAnswer } from '../../query'
import { href, hrefWith, param } from '../../route'
import { shellWord } from '../../shellword'
import { NextPage } from './overview'

export function Rows({ report: r, verdict }: { report: PruneReport; verdict: string }) {
  const clusters = param('clusters').split(',').filter(Boolean)
  const cluster = clusters[0] ?? ''
  const answer = useAnswer<PruneRows>('prunereports/rows', { report: r.name, verdict, cluster, limit: 100, after: param('after') }, [])
  return (
    <>
      {verdict === 'kept' && (
        <ul class="plain-list">
          {(r.kept ?? [])
            .filter((k) => k.count > 0)
            .map((k) => (
              <li key={k.reason}>
                <strong>
                  {formatNumber(k.count)} {k.reason}
                </strong>{' '}
                <span class="muted">
                  {formatBytes(k.bytes)}; {keptMeanings[k.reason]}
                </span>
              </li>
            ))}
        </ul>
      )}
      {verdict === 'orphan' && <p class="muted">Disks and snapshots of images that no longer exist. They are for people to delete: no prune does.</p>}
      {cluster && <Chip label="cluster" value={cluster} without={{ clusters: clusters.slice(1).join(',') || undefined, after: undefined }} />}
      {clusters.length > 1 && <p class="muted">Rows are of one cluster at a time: take this one away for the next.</p>}
      <Shown answer={answer}>
        {(list) => (
          <>
            <Table<PruneRow> caption="Rows of the report" rows={list.rows} keyOf={(row) => [row.cluster, row.kind, row.namespace, row.name, row.reason].join('/')} empty="There are none." columns={columnsOf(verdict)} />
            <NextPage name="after" next={list.next} of="rows" />
          </>
        )}
      </Shown>
      <p>
        <a href={`/fleet/v1/prunereports/rows?report=${encodeURIComponent(r.name)}&format=csv`} download={`${r.name}.csv`}>
          All rows as CSV
        </a>
      </p>
      <Command text={`kubectl ot prune review ${shellWord(r.name)}`} />
    </>
  )
}

function columnsOf(verdict: string): Column<PruneRow>[] {
  const cluster: Column<PruneRow> = { title: 'Cluster', cell: (row) => <a href={hrefWith({ clusters: row.cluster, after: undefined })}>{row.cluster}</a> }
  const name: Column<PruneRow> = { title: 'Image', cell: (row) => plainText([row.namespace, row.name].filter(Boolean).join('/')) }
  const why: Column<PruneRow> = {
    title: 'Why',
    cell: (row) => (
      <>
        {plainText(row.reason ?? '', 64)} {row.detail && <span class="muted">{plainText(row.detail, 300)}</span>}
      </>
    ),
  }
  switch (verdict) {
    case 'orphan':
      return [
        cluster,
        { title: 'Kind', cell: (row) => plainText(row.kind ?? '') },
        { title: 'Object', cell: (row) => plainText([row.namespace, row.name].filter(Boolean).join('/') || (row.detail ?? '')) },
        { title: 'Of image', wide: true, cell: (row) => plainText(row.image ?? '') },
        { title: 'Bytes', right: true, cell: (row) => (row.bytes === undefined ? 'unknown' : formatBytes(row.bytes)) },
      ]
    case 'unknown':
      return [{ title: 'Cluster', cell: (row) => <a href={href('clusters', row.cluster)}>{row.cluster}</a> }, { title: 'Reason', cell: (row) => <Sign tone="unknown">{plainText(row.reason ?? 'Unknown', 64)}</Sign> }, { title: 'What is known', cell: (row) => plainText(row.detail ?? '', 300) }]
    default:
      return [cluster, name, why]
  }
}
