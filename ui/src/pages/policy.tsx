import { Command } from '../components/command'
import { Page } from '../components/panel'
import { Shown } from '../components/states'
import type { FleetPolicy } from '../api'
import { effective, parseDraft } from '../policydraft'
import { diffCommand } from '../policytext'
import { memberRefreshMilliseconds, useAnswer } from '../query'
import { param } from '../route'
import '../styles/policy.css'
import { BlastPanel } from './policy/blast'
import { baseOf, Editor, OverridesPanel, State } from './policy/editor'

export default function PolicyPage() {
  const answer = useAnswer<FleetPolicy>('policy', {}, ['policy', 'members'], memberRefreshMilliseconds)
  const p = answer.value.value
  const command = p ? diffCommand(p.configMap.namespace, p.configMap.name, effective(baseOf(p), parseDraft(param('draft')))) : 'kubectl ot policy show'
  return (
    <Page title="Policy" aside={<Command text={command} />}>
      <Shown answer={answer} lines={10}>
        {(policy) => (
          <div class={param('draft') ? 'policy policy-trying' : 'policy'}>
            <div class="stack">
              <State policy={policy} />
              <Editor policy={policy} />
            </div>
            <div class="stack policy-side">
              <BlastPanel policy={policy} />
              <OverridesPanel policy={policy} />
            </div>
          </div>
        )}
      </Shown>
    </Page>
  )
}
