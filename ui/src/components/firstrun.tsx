// How a fleet begins, ticked off as it comes true.
import type { Summary } from '../api'
import { firstSteps } from '../firststeps'
import { Command } from './command'
import { Panel } from './panel'
import { Sign } from './sign'

export function FirstRun({ summary }: { summary: Summary }) {
  const steps = firstSteps(summary)
  const done = steps.filter((s) => s.done).length
  return (
    <Panel title={summary.members.total === 0 ? 'Join the first cluster' : 'The first steps'} aside={<span>{`${done} of ${steps.length} done`}</span>}>
      <ol class="first-steps">
        {steps.map((step) => (
          <li key={step.title} class={step.done ? 'done' : step.next ? 'next' : undefined} aria-current={step.next ? 'step' : undefined}>
            <Sign tone={step.done ? 'good' : step.next ? 'moving' : 'waiting'} bare>
              {step.done ? 'Done' : step.next ? 'Next' : 'Later'}
            </Sign>
            <div>
              <h3>{step.title}</h3>
              <p class="muted">{step.done ? step.doneText : step.text}</p>
              {step.next && step.commands.map((c) => <Command key={c} text={c} />)}
            </div>
          </li>
        ))}
      </ol>
    </Panel>
  )
}
