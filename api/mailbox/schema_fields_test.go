package mailbox_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pelotech/ot-fleet/api/mailbox"
)

type part struct {
	Name string `json:"name"`
	Size int    `json:"size,omitempty"`
}

type shared struct {
	Shared string `json:"shared"`
}

// Thing is a kind; its type has the same name.
type Thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		shared `json:",inline"`
		List   []part            `json:"list,omitempty"`
		Map    map[string]part   `json:"map,omitempty"`
		Plain  map[string]string `json:"plain,omitempty"`
		Sub    *part             `json:"sub,omitempty"`
		Hidden string            `json:"-"`
	} `json:"spec"`
	Status *struct {
		At    metav1.Time           `json:"at,omitzero"`
		Bytes *resource.Quantity    `json:"bytes,omitempty"`
		Raw   *runtime.RawExtension `json:"raw,omitempty"`
	} `json:"status,omitempty"`
}

const (
	partKnown = `{"type":"object","properties":{"name":{"type":"string"},"size":{"type":"integer"}}}`
	partOlder = `{"type":"object","properties":{"name":{"type":"string"}}}`
	status    = `{"properties":{"at":{"type":"string"},"bytes":{"x-kubernetes-int-or-string":true},"raw":{"type":"object"}}}`
)

func openAPIDocument(spec, status string) string {
	return `{"components":{"schemas":{
		"ot.pelotech.v1alpha1.Thing":{"x-kubernetes-group-version-kind":[{"kind":"Thing"}],"properties":{
			"apiVersion":{},"kind":{},"metadata":{"allOf":[{"$ref":"#/x"}]},"spec":` + spec + `,"status":` + status + `}},
		"ot.pelotech.v1alpha1.ThingList":{"x-kubernetes-group-version-kind":[{"kind":"ThingList"}]},
		"io.k8s.DeleteOptions":{"x-kubernetes-group-version-kind":[{"kind":"Thing"},{"kind":"Thing"}]}}}}`
}

func spec(list, values, sub string) string {
	return `{"properties":{"shared":{},"list":{"items":` + list + `},"map":{"additionalProperties":` + values + `},"plain":{"additionalProperties":{"type":"string"}},"sub":` + sub + `}}`
}

func TestUnknownFields(t *testing.T) {
	for name, test := range map[string]struct {
		document string
		want     []string
	}{
		"as new":              {openAPIDocument(spec(partKnown, partKnown, partKnown), status), nil},
		"older in a list":     {openAPIDocument(spec(partOlder, partKnown, partKnown), status), []string{"Thing.spec.list.size"}},
		"older in a map":      {openAPIDocument(spec(partKnown, partOlder, partKnown), status), []string{"Thing.spec.map.size"}},
		"older below":         {openAPIDocument(spec(partKnown, partKnown, partOlder), status), []string{"Thing.spec.sub.size"}},
		"several":             {openAPIDocument(`{"properties":{"list":{"items":`+partKnown+`}}}`, `{"properties":{"at":{}}}`), []string{"Thing.spec.map", "Thing.spec.plain", "Thing.spec.shared", "Thing.spec.sub", "Thing.status.bytes", "Thing.status.raw"}},
		"what keeps all":      {openAPIDocument(`{"x-kubernetes-preserve-unknown-fields":true}`, status), nil},
		"a kind not served":   {`{"components":{"schemas":{}}}`, nil},
		"more than we know":   {openAPIDocument(spec(`{"properties":{"name":{},"size":{},"weight":{}}}`, partKnown, partKnown), status), nil},
		"any additional ones": {openAPIDocument(spec(partKnown, `true`, partKnown), status), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mailbox.UnknownFields([]byte(test.document), &Thing{})
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
	_, err := mailbox.UnknownFields([]byte(`<html>`), &Thing{})
	require.ErrorContains(t, err, "reading the API server's schemas")
}
