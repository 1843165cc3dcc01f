// Rollouts of FleetDiskImages: the list, and one of them.
import type { Rollout, RolloutList } from '../api'
import { Choices } from '../components/choices'
import { Command, formatMessage } from '../components/command'
import { Page } from '../components/panel'
import { offsetOf, Pager } from '../components/pager'
import { StateBar } from '../components/statebar'
import { Empty, Shown } from '../components/states'
import { Table, type Column } from '../components/table'
import { TypedFilter } from '../components/typedfilter'
import { withoutCommand } from '../lanes'
import { listRolloutsCommand, publishCommand } from '../listcommands'
import { useAnswer } from '../query'
import { href, param, segments } from '../route'
import '../styles/rollouts.css'
import { RolloutPage } from './rollouts/detail'
import { Expected, RolloutSign } from './rollouts/phase'

const pageLength = 50

export default function RolloutsPage() {
  const name = segments.value[1]
  return name === undefined ? <RolloutListPage /> : <RolloutPage key={name} name={name} />
}

function RolloutListPage() {
  const query = { search: param('q'), phase: param('phase'), sort: param('sort') || 'phase', order: param('order'), offset: offsetOf('offset') || undefined, limit: pageLength }
  const answer = useAnswer<RolloutList>('rollouts', query, ['rollouts'])
  const command = listRolloutsCommand(query)
  return (
    <Page title="Rollouts" aside={command && <Command text={command} />}>
      <Shown answer={answer} lines={8}>
        {(list) => (list.all === 0 ? <NoRollouts /> : <Rollouts list={list} />)}
      </Shown>
    </Page>
  )
}

function NoRollouts() {
  return (
    <Empty title="There is no FleetDiskImage yet.">
      <p>A FleetDiskImage is a disk image that a part of the fleet gets, wave by wave. Publish the first one:</p>
      <Command text={publishCommand} />
    </Empty>
  )
}

function Rollouts({ list }: { list: RolloutList }) {
  const phases = list.phases ?? {}
  return (
    <div class="rollout-list">
      <div class="filters">
        <Choices
          name="phase"
          label="Rollouts by phase"
          resets="offset"
          options={[
            { value: '', label: 'All', count: list.all },
            { value: 'attention', label: 'Needs a person', count: list.attention ?? 0, tone: 'attention' },
            { value: 'Progressing', label: 'In progress', count: phases.Progressing ?? 0 },
            { value: 'Waiting', label: 'Waiting', count: phases.Waiting ?? 0 },
            { value: 'Failed', label: 'Failed', count: phases.Failed ?? 0, tone: 'bad' },
            { value: 'Succeeded', label: 'Done', count: phases.Succeeded ?? 0 },
          ]}
        />
        <TypedFilter bare name="q" label="Name or version" placeholder="Name or version" starts={['offset']} />
      </div>
      <Table caption="List of rollouts" columns={columns} rows={list.rollouts} keyOf={(r) => r.name} empty="No rollout is like that." />
      <Pager name="offset" shown={list.rollouts.length} limit={pageLength} total={list.total} of="rollouts" />
    </div>
  )
}

const columns: Column<Rollout>[] = [
  {
    title: 'Image',
    sort: 'name',
    cell: (r) => (
      <a class="rollout-name" href={href('rollouts', r.name)}>
        {r.name} <span class="muted">{r.version}</span>
      </a>
    ),
  },
  {
    title: 'State',
    sort: 'phase',
    cell: (r) => (
      <>
        <RolloutSign rollout={r} />
        {r.attention && r.message && <div class="rollout-message muted">{formatMessage(withoutCommand(r.message), 140)}</div>}
      </>
    ),
  },
  { title: 'Wave', wide: true, cell: (r) => (r.currentWave ? <span class="nowrap">{r.currentWave}</span> : <span class="muted">–</span>) },
  { title: 'Clusters', sort: 'clusters', cell: (r) => (r.observed ? <StateBar counts={r.clusters} /> : <span class="muted">unknown</span>) },
  { title: 'Expected', sort: 'expected', wide: true, cell: (r) => <Expected rollout={r} /> },
]
