//go:build linux

package chart_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newImage is the proposal's example with some fields of its spec replaced, or
// removed where nil stands for them.
func newImage(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(apitest.ProposedImage), &object.Object))
	object.SetNamespace(imageNamespace)
	spec := object.Object["spec"].(map[string]any)
	maps.Copy(spec, changes)
	maps.DeleteFunc(spec, func(_ string, value any) bool { return value == nil })
	return object
}

func TestProposalImageAppliesUnchanged(t *testing.T) {
	object := newImage(t, nil)
	configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
	require.NoError(t, adminClient.Apply(t.Context(), configuration, client.FieldOwner("person")))

	stored := &v1alpha1.VMDiskImage{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), stored))
	assert.Equal(t, v1alpha1.SourceS3, stored.Spec.SourceType)
	assert.Equal(t, "24Gi", stored.Spec.DiskSize.String())
	assert.Equal(t, "gp3", stored.Spec.StorageClass)
	assert.Equal(t, "ebs-snapshot", stored.Spec.SnapshotClass)
	assert.Equal(t, "foo-bar", stored.Spec.SecretRef)
	assert.Equal(t, "harrison-vm", stored.Spec.Name)
	require.NoError(t, adminClient.Delete(t.Context(), stored))
}

func TestValidImages(t *testing.T) {
	for name, changes := range map[string]map[string]any{
		"s3 by its own scheme":     {"url": "s3://bucket/key.qcow2"},
		"http":                     {"sourceType": "http", "url": "http://images.example.com/a.qcow2"},
		"https with a checksum":    {"sourceType": "http", "url": "https://images.example.com/a.qcow2", "checksum": "sha256:" + strings.Repeat("0a", 32)},
		"a port and an address":    {"sourceType": "http", "url": "http://127.0.0.1:8080/a.qcow2"},
		"registry":                 {"sourceType": "registry", "url": "docker://registry.example.com/a:1"},
		"registry archive":         {"sourceType": "registry", "url": "oci-archive:///images/a.tar"},
		"blank":                    {"sourceType": "blank", "url": nil, "secretRef": nil},
		"only what is required":    {"storageClass": nil, "snapshotClass": nil, "secretRef": nil},
		"a size in bytes":          {"diskSize": "25769803776"},
		"a size as a number":       {"diskSize": int64(25769803776)},
		"the smallest size":        {"diskSize": "1Mi"},
		"the largest size":         {"diskSize": "64Ti"},
		"a decimal unit":           {"diskSize": "24G"},
		"a fraction":               {"diskSize": "1.5Gi"},
		"a name of 253 characters": {"name": strings.Repeat("n", 253)},
		"a name with spaces":       {"name": "Windows Server 2022 (lab 404)"},
		"a certificate authority":  {"certConfigMap": "our-ca"},
		"the lowest priority":      {"priority": int64(-1000)},
		"an @ in the path":         {"url": "https://s3.example.com/images/a@1.0.qcow2"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, adminClient.Create(t.Context(), newImage(t, changes), client.DryRunAll))
		})
	}
}

func TestInvalidImagesAreRejected(t *testing.T) {
	for name, test := range map[string]struct {
		changes map[string]any
		says    string
	}{
		"a unit that is none":       {map[string]any{"diskSize": "24GB"}, "diskSize must be a quantity such as 24Gi"},
		"a unit in words":           {map[string]any{"diskSize": "24 gigabytes"}, "diskSize must be a quantity such as 24Gi"},
		"an empty size":             {map[string]any{"diskSize": ""}, "diskSize must be a quantity such as 24Gi"},
		"a forgotten unit":          {map[string]any{"diskSize": "24"}, "diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"},
		"a forgotten unit, number":  {map[string]any{"diskSize": int64(24)}, "diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"},
		"a negative size":           {map[string]any{"diskSize": "-1Gi"}, "diskSize must be at least 1Mi"},
		"thousandths of a byte":     {map[string]any{"diskSize": "24m"}, "diskSize must be at least 1Mi"},
		"more than there is":        {map[string]any{"diskSize": "65Ti"}, "diskSize must be at most 64Ti"},
		"no size":                   {map[string]any{"diskSize": nil}, "spec.diskSize: Required value"},
		"http by s3":                {map[string]any{"sourceType": "http", "url": "s3://bucket/key"}, "url must start with http:// or https:// for sourceType http"},
		"http without a scheme":     {map[string]any{"sourceType": "http", "url": "images.example.com/a.qcow2"}, "url must start with http:// or https:// for sourceType http"},
		"http from a file":          {map[string]any{"sourceType": "http", "url": "file:///etc/passwd"}, "url must start with http:// or https:// for sourceType http"},
		"s3 by ftp":                 {map[string]any{"url": "ftp://example.com/a"}, "url must start with s3://, https:// or http:// for sourceType s3"},
		"registry by https":         {map[string]any{"sourceType": "registry", "url": "https://registry.example.com/a"}, "url must start with docker:// or oci-archive:// for sourceType registry"},
		"no url":                    {map[string]any{"url": nil}, "url is required: say where the image is downloaded from"},
		"an empty url":              {map[string]any{"url": ""}, "url is required: say where the image is downloaded from"},
		"a url without a host":      {map[string]any{"url": "https://"}, "url must name a host, as in https://images.example.com/ubuntu.qcow2"},
		"a password in the url":     {map[string]any{"url": "https://user:secret@example.com/a"}, "url must not carry a user name or password: put them into a Secret and name it in secretRef"},
		"a url that is too long":    {map[string]any{"url": "https://example.com/" + strings.Repeat("a", 2048)}, "spec.url: Too long: may not be more than 2048"},
		"blank with a url":          {map[string]any{"sourceType": "blank", "secretRef": nil}, "sourceType blank is an empty disk and takes no url"},
		"blank with a secret":       {map[string]any{"sourceType": "blank", "url": nil}, "sourceType blank downloads nothing: remove secretRef and certConfigMap"},
		"a type that is none":       {map[string]any{"sourceType": "ftp"}, `Unsupported value: "ftp": supported values: "s3", "http", "registry", "blank"`},
		"no type":                   {map[string]any{"sourceType": nil}, "spec.sourceType: Required value"},
		"no name":                   {map[string]any{"name": nil}, "spec.name: Required value"},
		"an empty name":             {map[string]any{"name": ""}, "name must have 1 to 253 characters"},
		"a name of 254 characters":  {map[string]any{"name": strings.Repeat("n", 254)}, "name must have 1 to 253 characters"},
		"a checksum of s3":          {map[string]any{"checksum": "md5:" + strings.Repeat("0", 32)}, "checksum works with sourceType http only"},
		"a checksum without a kind": {map[string]any{"sourceType": "http", "checksum": strings.Repeat("0", 64)}, "checksum must be an algorithm and a hash of its length, as in sha256:<64 hex digits>"},
		"a checksum cut short":      {map[string]any{"sourceType": "http", "checksum": "sha256:00"}, "checksum must be an algorithm and a hash of its length"},
		"a priority beyond bounds":  {map[string]any{"priority": int64(1001)}, "spec.priority: Invalid value: 1001: spec.priority in body should be less than or equal to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), newImage(t, test.changes), client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
		})
	}
}

func TestAllImageErrorsAreReportedAtOnce(t *testing.T) {
	err := adminClient.Create(t.Context(), newImage(t, map[string]any{"diskSize": "24", "url": "ftp://user:secret@example.com/a"}), client.DryRunAll)
	require.ErrorContains(t, err, "diskSize must be at least 1Mi")
	require.ErrorContains(t, err, "url must start with s3://")
	require.ErrorContains(t, err, "url must not carry a user name or password")
}
