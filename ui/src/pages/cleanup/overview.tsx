// All reports and prunes, the newest in front.
import { useSignal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import type { PruneProgressList, PruneReport, PruneReportList } from '../../api'
import { sendJSON } from '../../client'
import { Command } from '../../components/command'
import { shellWord } from '../../shellword'
import { Page, Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { Empty, Shown } from '../../components/states'
import { Table } from '../../components/table'
import { Age, Clock } from '../../components/time'
import { Reach, ReachItem, Write } from '../../components/write'
import { formatBytes, formatCount, formatNumber, plainText } from '../../format'
import { ages, isObjectName, reportName } from '../../prunes'
import { useAnswer } from '../../query'
import { hrefWith, href, param } from '../../route'
import { PrunePanel, PruneTable } from './prunes'

const pageSize = 50

export function Overview() {
  const reports = useAnswer<PruneReportList>('prunereports', { sort: 'newest', limit: pageSize, after: param('reports') }, ['prunes'])
  const active = usePrunes(true, 'active')
  const ended = usePrunes(false, 'prunes')
  return (
    <Page title="Clean up" aside={<Command text="kubectl ot prune status" />}>
      <Shown answer={active} lines={2}>
        {(list) => <ActivePrunes list={list} />}
      </Shown>
      <Panel title="Reports" aside={<NewReport />}>
        <Shown answer={reports}>
          {(list) =>
            list.reports.length === 0 ? (
              <Empty title="There is no report of what can go.">
                <p>A report asks all clusters which images nothing needs. It deletes nothing.</p>
                <Command text="kubectl ot prune report --unreferenced-for 168h" />
              </Empty>
            ) : (
              <>
                <Table
                  caption="Reports, the newest first"
                  rows={list.reports}
                  keyOf={(r) => r.name}
                  columns={[
                    { title: 'Report', cell: (r) => <a href={href('cleanup', r.lastReport || r.name)}>{r.name}</a> },
                    { title: 'State', cell: (r) => <ReportState report={r} /> },
                    { title: 'Answered', right: true, wide: true, cell: (r) => (r.schedule ? '–' : `${r.clusters.answered}/${r.clusters.total}`) },
                    { title: 'Can go', right: true, cell: (r) => (isSummedUp(r) ? formatNumber(r.candidates.count) : '–') },
                    { title: 'Bytes', right: true, cell: (r) => (isSummedUp(r) ? formatBytes(r.candidates.bytes) : '–') },
                    { title: 'Age', right: true, cell: (r) => (r.completedAt ? <Age at={r.completedAt} /> : '–') },
                    { title: 'Digest', wide: true, cell: (r) => <code>{r.digest ? r.digest.slice(0, 12) : ''}</code> },
                  ]}
                />
                <NextPage name="reports" next={list.next} of="reports" />
              </>
            )
          }
        </Shown>
      </Panel>
      {ended.value.value && <EndedPrunes list={ended.value.value} />}
    </Page>
  )
}

/** Asks for the prunes that are active, or over: a page of either never lacks one because of the other. */
function usePrunes(active: boolean, page: string) {
  return useAnswer<PruneProgressList>('imageprunes', { active: String(active), sort: 'newest', limit: pageSize, after: param(page) }, ['prunes'])
}

function ActivePrunes({ list }: { list: PruneProgressList }) {
  if (list.prunes.length === 0) return <NextPage name="active" next={list.next} of="active prunes" />
  return (
    <div class="stack">
      {list.prunes.map((p) => (
        <PrunePanel key={p.name} prune={p} />
      ))}
      <NextPage name="active" next={list.next} of="active prunes" />
    </div>
  )
}

function EndedPrunes({ list }: { list: PruneProgressList }) {
  if (list.prunes.length === 0 && param('prunes') === '') return null
  return (
    <Panel title="Prunes that are over">
      <PruneTable prunes={list.prunes} />
      <NextPage name="prunes" next={list.next} of="prunes" />
    </Panel>
  )
}

/** NextPage leads to what comes after a part of a list, and back to its begin. */
export function NextPage({ name, next, of }: { name: string; next?: string; of: string }) {
  if (!next && param(name) === '') return null
  return (
    <nav class="pager muted" aria-label={`Pages of ${of}`}>
      {param(name) !== '' && (
        <a class="button button-quiet" href={hrefWith({ [name]: undefined })}>
          ← First {of}
        </a>
      )}
      {next && (
        <a class="button button-quiet" href={hrefWith({ [name]: next })} rel="next">
          More {of} →
        </a>
      )}
    </nav>
  )
}

function isSummedUp(r: PruneReport): boolean {
  return r.phase === 'Complete'
}

export function ReportState({ report: r }: { report: PruneReport }) {
  switch (r.phase) {
    case 'Complete':
      return <Sign tone={r.clusters.unknown > 0 ? 'unknown' : 'good'}>{r.clusters.unknown > 0 ? `Complete, ${r.clusters.unknown} unknown` : 'Complete'}</Sign>
    case 'Failed':
      return <Sign tone="bad">{r.reason || 'Failed'}</Sign>
    case 'Scheduled':
      return (
        <>
          <Sign tone="waiting">{plainText(r.schedule ?? '', 60)}</Sign>
          {r.nextScheduleTime && (
            <span class="muted">
              , next <Clock at={r.nextScheduleTime} />
            </span>
          )}
        </>
      )
    case 'Collecting':
      return <Sign tone="moving">Collecting</Sign>
    default:
      return <Sign tone="waiting">new</Sign>
  }
}

function NewReport() {
  const unreferencedFor = useSignal('168h')
  const typed = useSignal<string | undefined>(undefined)
  // Each opening of the dialog offers another name, so that a second report can be made from this page.
  const isOpen = param('do') === 'report'
  const offered = useMemo(() => reportName(new Date()), [isOpen])
  const name = typed.value ?? offered
  // Without a name, the command chooses one by the time at which it runs.
  const command = `kubectl ot prune report${typed.value === undefined ? '' : ' ' + shellWord(name)}${unreferencedFor.value ? ` --unreferenced-for ${unreferencedFor.value}` : ''}`
  return (
    <Write
      name="report"
      verb="create"
      resource="prunereports"
      label="Make a report…"
      title="Make a report of what can go"
      action="Make the report"
      running="Making it"
      compact
      command={command}
      blocked={isObjectName(name) ? undefined : 'A name has lower-case letters, digits, - and dots.'}
      run={async () => {
        await sendJSON('POST', '/k8s/apis/pelotech.ot/v1alpha1/prunereports', {
          apiVersion: 'pelotech.ot/v1alpha1',
          kind: 'PruneReport',
          metadata: { name },
          spec: unreferencedFor.value ? { unreferencedFor: unreferencedFor.value } : {},
        })
        typed.value = undefined
        return { text: `PruneReport ${name} is being made.`, notes: ['It is complete when all clusters that are online have answered.'], command: `kubectl ot prune review ${shellWord(name)}` }
      }}
    >
      <p>All clusters are asked which images nothing needs. Nothing is deleted.</p>
      <Reach>
        <ReachItem term="Images that no machine has referenced for">
          <select aria-label="Unreferenced for" value={unreferencedFor.value} onChange={(event) => (unreferencedFor.value = event.currentTarget.value)}>
            {ages.map((a) => (
              <option key={a.value} value={a.value}>
                {a.label}
              </option>
            ))}
          </select>
        </ReachItem>
        <ReachItem term="Name">
          <input aria-label="Name of the report" value={name} maxLength={180} spellcheck={false} onInput={(event) => (typed.value = event.currentTarget.value)} />
        </ReachItem>
      </Reach>
    </Write>
  )
}

/** Totals are a number of images and their bytes in words. */
export function totalsOf(t: { count: number; bytes: number }): string {
  return `${formatCount(t.count, 'image')}, ${formatBytes(t.bytes)}`
}
