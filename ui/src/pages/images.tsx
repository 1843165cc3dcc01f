import { Page } from '../components/panel'

export default function ImagesPage() {
  return <Page title="Images">{null}</Page>
}
