import { param, segments } from '../route'
import '../styles/cleanup.css'
import { Overview } from './cleanup/overview'
import { Report } from './cleanup/report'

export default function CleanupPage() {
  const report = segments.value[1]
  return report === undefined ? <Overview /> : <Report key={report + param('verdict')} name={report} />
}
