import { Page } from '../components/panel'

export default function TransfersPage() {
  return <Page title="Transfers">{null}</Page>
}
