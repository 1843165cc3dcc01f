import { Page } from '../components/panel'

export default function FleetPage() {
  return <Page title="Fleet">{null}</Page>
}
