package charts

import _ "embed"

// VMDiskImageCRD is the generated CustomResourceDefinition of VMDiskImages.
//
//go:embed ot-agent/files/crds/pelotech.ot_vmdiskimages.yaml
var VMDiskImageCRD []byte
