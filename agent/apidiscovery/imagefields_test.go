package apidiscovery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestImageFields(t *testing.T) {
	var version, properties, statusProperties string
	var status, documents, changes int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case status != http.StatusOK:
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, map[int]string{403: "Forbidden", 500: "InternalError"}[status], status)
		case r.URL.Path == "/openapi/v3":
			_, _ = fmt.Fprintf(w, `{"paths":{"apis/pelotech.ot/v1alpha1":{"serverRelativeURL":"/openapi/v3/apis/pelotech.ot/v1alpha1?hash=%s"}}}`, version)
		default:
			documents++
			_, _ = fmt.Fprintf(w, `{"components":{"schemas":{"a":{"x-kubernetes-group-version-kind":[{"kind":"VMDiskImage"}],"properties":{"spec":{"properties":{%s}},"status":{"properties":{%s}}}}}}}`, properties, statusProperties)
		}
	}))
	defer server.Close()
	fields, err := NewImageFields(&rest.Config{Host: server.URL}, func() { changes++ })
	require.NoError(t, err)
	for _, step := range []struct {
		name                string
		status              int
		version, properties string
		want                []string
		wantDocuments       int
		wantChanges         int
	}{
		{"no answer yet", 500, "", "", nil, 0, 0},
		{"first answer", 200, "1", `"url":{},"sourceType":{"enum":["http"]}`, []string{"sourceType", "sourceType=http", "url"}, 1, 1},
		{"unchanged", 200, "1", "", []string{"sourceType", "sourceType=http", "url"}, 1, 1},
		{"no answer", 500, "", "", []string{"sourceType", "sourceType=http", "url"}, 1, 1},
		{"upgraded", 200, "2", `"url":{},"checksum":{}`, []string{"checksum", "url"}, 2, 2},
		{"downgraded", 200, "3", `"url":{},"checksum":{}`, []string{"checksum", "url"}, 3, 3},
		{"shown to nobody", 403, "", "", v1alpha1.ImageFields(), 3, 4},
		{"shown again", 200, "3", `"url":{}`, []string{"url"}, 4, 5},
	} {
		statusProperties = map[string]string{"2": `"observedPlanRetry":{}`, "3": `"observedRetry":{}`}[step.version]
		status, version, properties = step.status, step.version, step.properties
		fields.Refresh(t.Context())
		assert.Equal(t, step.want, fields.Current(), step.name)
		switch { // a retry is once per token only where its token is remembered
		case status == http.StatusForbidden, version == "2":
			assert.Equal(t, []string{v1alpha1.PlanFieldRetry}, fields.Plan(), step.name)
		case status == http.StatusOK:
			assert.Empty(t, fields.Plan(), step.name)
		}
		assert.True(t, slices.IsSorted(fields.Current()))
		assert.Equal(t, []int{step.wantDocuments, step.wantChanges}, []int{documents, changes}, step.name)
	}
}
