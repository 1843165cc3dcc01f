//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestUnreferencedImageTTL(t *testing.T) {
	for _, after := range []string{"1m", "60s", "72h", "1h30m", "1h30m15s", "90m", "100000h"} {
		t.Run(after, func(t *testing.T) {
			assert.NoError(t, adminClient.Create(t.Context(), newImage(t, map[string]any{"deleteUnreferencedAfter": after}), client.DryRunAll))
		})
	}
	for _, after := range []string{"", "0s", "59s", "-1h", "3d", "72", "1.5h", "h", "1m1h", "72 h", "999999999999999999h", "9999999h", strings.Repeat("9", 31) + "s"} {
		t.Run("refused "+after, func(t *testing.T) {
			err := adminClient.Create(t.Context(), newImage(t, map[string]any{"deleteUnreferencedAfter": after}), client.DryRunAll)
			require.ErrorContains(t, err, "deleteUnreferencedAfter must be a duration of at least 1m in hours, minutes and seconds, as in 72h or 1h30m")
			require.ErrorContains(t, err, ", up to 999999h")
			assert.NotContains(t, err.Error(), "conversion error")
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
		})
	}
}

// newImage returns the proposal's example with spec fields replaced; nil removes a field.
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
		"http":                     {"sourceType": "http", "url": "http://images.example.com/a.qcow2"},
		"https with a checksum":    {"sourceType": "http", "url": "https://images.example.com/a.qcow2", "checksum": "sha256:" + strings.Repeat("0a", 32)},
		"a port and an address":    {"sourceType": "http", "url": "http://127.0.0.1:8080/a.qcow2"},
		"registry":                 {"sourceType": "registry", "url": "docker://registry.example.com/a:1"},
		"registry archive":         {"sourceType": "registry", "url": "oci-archive:///images/a.tar"},
		"blank":                    {"sourceType": "blank", "url": nil, "secretRef": nil},
		"headers":                  {"sourceType": "http", "extraHeaders": []any{"X-Tenant: blue", "authorization:Bearer a.b", "User-Agent: ours/1.0 (a; b)"}, "secretExtraHeaders": []any{"token"}},
		"headers, and a word":      {"sourceType": "http", "url": "https://metadata.example.com/169.254.169.254/a", "extraHeaders": []any{"X-Metadataset: metadata:", "Authorization: Bearer Oracle.1"}},
		"the most headers":         {"sourceType": "http", "extraHeaders": repeat(8, func(i int) any { return fmt.Sprintf("X-%02d: ", i) + strings.Repeat("x", 250) })},
		"the most header Secrets":  {"sourceType": "http", "secretExtraHeaders": []any{"a", "b", "c", strings.Repeat("d", 253)}},
		"no headers":               {"extraHeaders": []any{}, "secretExtraHeaders": []any{}},
		"gcs":                      {"sourceType": "gcs", "url": "gs://our_bucket.example.com/disks/a b.qcow2"},
		"pulled by the importer":   {"sourceType": "registry", "url": "oci-archive:///images/a.tar", "pullMethod": "pod"},
		"pulled by the node":       {"sourceType": "registry", "url": "docker://registry.example.com/a:1", "pullMethod": "node", "secretRef": nil},
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
		"a unit that is none":         {map[string]any{"diskSize": "24GB"}, "diskSize must be a quantity such as 24Gi"},
		"a unit in words":             {map[string]any{"diskSize": "24 gigabytes"}, "diskSize must be a quantity such as 24Gi"},
		"an empty size":               {map[string]any{"diskSize": ""}, "diskSize must be a quantity such as 24Gi"},
		"a forgotten unit":            {map[string]any{"diskSize": "24"}, "diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"},
		"a forgotten unit, number":    {map[string]any{"diskSize": int64(24)}, "diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"},
		"a negative size":             {map[string]any{"diskSize": "-1Gi"}, "diskSize must be at least 1Mi"},
		"thousandths of a byte":       {map[string]any{"diskSize": "24m"}, "diskSize must be at least 1Mi"},
		"more than there is":          {map[string]any{"diskSize": "65Ti"}, "diskSize must be at most 64Ti"},
		"no size":                     {map[string]any{"diskSize": nil}, "spec.diskSize: Required value"},
		"http by s3":                  {map[string]any{"sourceType": "http", "url": "s3://bucket/key"}, "url must start with http:// or https:// for sourceType http"},
		"http without a scheme":       {map[string]any{"sourceType": "http", "url": "images.example.com/a.qcow2"}, "url must start with http:// or https:// for sourceType http"},
		"http from a file":            {map[string]any{"sourceType": "http", "url": "file:///etc/passwd"}, "url must start with http:// or https:// for sourceType http"},
		"s3 by ftp":                   {map[string]any{"url": "ftp://example.com/a"}, "CDI takes https:// and http://, and no s3://"},
		"s3 by its own scheme":        {map[string]any{"url": "s3://bucket/key.qcow2"}, "as in https://s3.eu-central-1.amazonaws.com/bucket/key"},
		"a url of a YAML block":       {map[string]any{"url": "https://example.com/a\n"}, "url must have no space at its beginning or end, and no line break"},
		"a url behind a space":        {map[string]any{"url": " https://example.com/a"}, "url must have no space at its beginning or end"},
		"a url with a tab in it":      {map[string]any{"url": "https://example.com/a\tb"}, "and no line break"},
		"a name of a YAML block":      {map[string]any{"name": "harrison-vm\n"}, "name must have no space at its beginning or end"},
		"a secret of a YAML block":    {map[string]any{"secretRef": "foo-bar\n"}, "secretRef must be the name of a Secret"},
		"certificates, then space":    {map[string]any{"certConfigMap": "our-ca "}, "certConfigMap must be the name of a ConfigMap"},
		"a class of a YAML block":     {map[string]any{"storageClass": "gp3\n"}, "storageClass must be the name of a StorageClass"},
		"snapshots of a YAML block":   {map[string]any{"snapshotClass": "ebs-snapshot\n"}, "snapshotClass must be the name of a VolumeSnapshotClass"},
		"a checksum, then a break":    {map[string]any{"sourceType": "http", "checksum": "md5:" + strings.Repeat("0", 32) + "\n"}, "checksum must be an algorithm and a hash of its length"},
		"registry by https":           {map[string]any{"sourceType": "registry", "url": "https://registry.example.com/a"}, "url must start with docker:// or oci-archive:// for sourceType registry"},
		"an unknown architecture":     {map[string]any{"architecture": "x86_64"}, "architecture: Unsupported value"},
		"no DataSource":               {mergeFields(ofDataSource("os"), fieldChanges{"dataSource": nil}), "dataSource and sourceType dataSource belong together"},
		"a DataSource beside a url":   {map[string]any{"dataSource": map[string]any{"name": "fedora"}}, "dataSource and sourceType dataSource belong together"},
		"a DataSource with a url":     {mergeFields(ofDataSource("os"), fieldChanges{"url": "https://example.com/a"}), "sourceType dataSource downloads and stores nothing"},
		"a DataSource with a Secret":  {mergeFields(ofDataSource("os"), fieldChanges{"secretRef": "a"}), "sourceType dataSource downloads and stores nothing"},
		"a DataSource, stored":        {mergeFields(ofDataSource("os"), fieldChanges{"storageClass": "gp3"}), "sourceType dataSource downloads and stores nothing"},
		"a DataSource, published":     {mergeFields(ofDataSource("os"), fieldChanges{"publish": map[string]any{"dataSource": true}}), "sourceType dataSource uses a DataSource that others keep: remove publish"},
		"a DataSource of a huge name": {mergeFields(ofDataSource("os"), fieldChanges{"dataSource": map[string]any{"name": strings.Repeat("a", 254)}}), "dataSource.name: Too long"},
		"a DataSource of a path":      {mergeFields(ofDataSource("os"), fieldChanges{"dataSource": map[string]any{"name": "../a"}}), "name must be the name of a DataSource"},
		"a namespace with a dot":      {ofDataSource("a.b"), "namespace must be the name of a namespace"},
		"no url":                      {map[string]any{"url": nil}, "url is required: say where the image is downloaded from"},
		"an empty url":                {map[string]any{"url": ""}, "url is required: say where the image is downloaded from"},
		"a url without a host":        {map[string]any{"url": "https://"}, "url must name a host, as in https://images.example.com/ubuntu.qcow2"},
		"a password in the url":       {map[string]any{"url": "https://user:secret@example.com/a"}, "url must not carry a user name or password: put them into a Secret and name it in secretRef"},
		"a url that is too long":      {map[string]any{"url": "https://example.com/" + strings.Repeat("a", 2048)}, "spec.url: Too long: may not be more than 2048"},
		"blank with a url":            {map[string]any{"sourceType": "blank", "secretRef": nil}, "sourceType blank is an empty disk and takes no url"},
		"blank with a secret":         {map[string]any{"sourceType": "blank", "url": nil}, "sourceType blank downloads nothing: remove secretRef and certConfigMap"},
		"a type that is none":         {map[string]any{"sourceType": "ftp"}, `Unsupported value: "ftp": supported values: "s3", "http", "gcs", "registry", "blank"`},
		"gcs by https":                {map[string]any{"sourceType": "gcs", "url": "https://storage.googleapis.com/b/a"}, "url must be gs://bucket/object for sourceType gcs"},
		"gcs of a bucket":             {map[string]any{"sourceType": "gcs", "url": "gs://bucket"}, "url must be gs://bucket/object for sourceType gcs"},
		"gcs of a folder":             {map[string]any{"sourceType": "gcs", "url": "gs://bucket/disks/"}, "url must be gs://bucket/object for sourceType gcs"},
		"gcs with a query":            {map[string]any{"sourceType": "gcs", "url": "gs://bucket/a?generation=1"}, "url must be gs://bucket/object for sourceType gcs, without ? and #"},
		"gcs with certificates":       {map[string]any{"sourceType": "gcs", "url": "gs://bucket/a", "certConfigMap": "our-ca"}, "certConfigMap does not work with sourceType gcs"},
		"gcs with a checksum":         {map[string]any{"sourceType": "gcs", "url": "gs://bucket/a", "checksum": "md5:" + strings.Repeat("0", 32)}, "checksum works with sourceType http only"},
		"http by gs":                  {map[string]any{"sourceType": "http", "url": "gs://bucket/a"}, "url must start with http:// or https:// for sourceType http"},
		"headers of s3":               {map[string]any{"extraHeaders": []any{"X-Tenant: blue"}}, "extraHeaders and secretExtraHeaders work with sourceType http only"},
		"header Secrets of s3":        {map[string]any{"secretExtraHeaders": []any{"token"}}, "extraHeaders and secretExtraHeaders work with sourceType http only"},
		"a header without a colon":    {map[string]any{"sourceType": "http", "extraHeaders": []any{"p4ssword-of-ours"}}, "each of extraHeaders must be one line as in 'X-Tenant: blue'"},
		"a header without a value":    {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Tenant:"}}, "each of extraHeaders must be one line"},
		"a header without a name":     {map[string]any{"sourceType": "http", "extraHeaders": []any{": p4ssword-of-ours"}}, "each of extraHeaders must be one line"},
		"a header of a YAML block":    {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: p4ssword-of-ours\n"}}, "each of extraHeaders must be one line"},
		"a header in a header":        {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: p4ssword-of-ours\r\nHost: internal"}}, "each of extraHeaders must be one line"},
		"a header with a tab":         {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: p4ssword\tof-ours"}}, "each of extraHeaders must be one line"},
		"a header, then a space":      {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: p4ssword-of-ours "}}, "each of extraHeaders must be one line"},
		"a header in Norwegian":       {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: p4ssørd-of-ours"}}, "each of extraHeaders must be one line"},
		"another host":                {map[string]any{"sourceType": "http", "extraHeaders": []any{"hOsT: internal.example.com"}}, "extraHeaders must not set Connection"},
		"a part of the file":          {map[string]any{"sourceType": "http", "extraHeaders": []any{"Range: bytes=0-9"}}, "extraHeaders must not set Connection"},
		"a metadata service":          {map[string]any{"sourceType": "http", "url": "http://169.254.169.254/latest", "extraHeaders": []any{"X-Key: p4ssword"}}, "url must not be a metadata service of a cloud"},
		"the same by Secrets":         {map[string]any{"sourceType": "http", "url": "http://Metadata.Google.Internal.:80/computeMetadata", "secretExtraHeaders": []any{"token"}}, "url must not be a metadata service of a cloud"},
		"the same of Azure":           {map[string]any{"sourceType": "http", "url": "http://168.63.129.16?a", "extraHeaders": []any{"X-Key: p4ssword"}}, "url must not be a metadata service of a cloud"},
		"the same by IPv6":            {map[string]any{"sourceType": "http", "url": "http://[fd00:ec2::254]/a", "extraHeaders": []any{"X-Key: p4ssword"}}, "url must not be a metadata service of a cloud"},
		"a header of Google":          {map[string]any{"sourceType": "http", "extraHeaders": []any{"METADATA-flavor: Google"}}, "extraHeaders must not have a name with the word metadata"},
		"a header of Azure":           {map[string]any{"sourceType": "http", "extraHeaders": []any{"Metadata:true"}}, "extraHeaders must not have a name with the word metadata"},
		"a header of AWS":             {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-aws-ec2-metadata-token: p4ss"}}, "extraHeaders must not have a name with the word metadata"},
		"a header of Oracle":          {map[string]any{"sourceType": "http", "extraHeaders": []any{"Authorization: Bearer Oracle"}}, "nor Authorization: Bearer Oracle"},
		"a variable of the Pod":       {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: $(IMPORTER_SECRET_KEY)"}}, "extraHeaders must not contain $( or $$"},
		"nine headers":                {map[string]any{"sourceType": "http", "extraHeaders": repeat(9, func(i int) any { return fmt.Sprintf("X-%d: p4ssword", i) })}, "spec.extraHeaders: Too many: 9: must have at most 8 items"},
		"a header that is too long":   {map[string]any{"sourceType": "http", "extraHeaders": []any{"X-Key: " + strings.Repeat("p4ssword", 32)}}, "spec.extraHeaders[0]: Too long: may not be more than 256"},
		"five header Secrets":         {map[string]any{"sourceType": "http", "secretExtraHeaders": []any{"a", "b", "c", "d", "e"}}, "spec.secretExtraHeaders: Too many: 5: must have at most 4 items"},
		"a header Secret twice":       {map[string]any{"sourceType": "http", "secretExtraHeaders": []any{"a", "a"}}, "spec.secretExtraHeaders[1]: Duplicate value"},
		"a header as a Secret":        {map[string]any{"sourceType": "http", "secretExtraHeaders": []any{"X-Tenant: blue"}}, "each of secretExtraHeaders must be the name of a Secret"},
		"a pull method that is none":  {map[string]any{"sourceType": "registry", "url": "docker://registry.example.com/a", "pullMethod": "cache"}, `Unsupported value: "cache": supported values: "pod", "node"`},
		"a pull method of http":       {map[string]any{"sourceType": "http", "pullMethod": "pod"}, "pullMethod works with sourceType registry only"},
		"the node with a Secret":      {map[string]any{"sourceType": "registry", "url": "docker://registry.example.com/a", "pullMethod": "node"}, "put pull Secrets into spec.config.imagePullSecrets of CDI"},
		"the node with authorities":   {map[string]any{"sourceType": "registry", "url": "docker://registry.example.com/a", "pullMethod": "node", "secretRef": nil, "certConfigMap": "our-ca"}, "remove secretRef and certConfigMap"},
		"an archive by the node":      {map[string]any{"sourceType": "registry", "url": "oci-archive:///images/a.tar", "pullMethod": "node", "secretRef": nil}, "url must start with docker:// for pullMethod node"},
		"no type":                     {map[string]any{"sourceType": nil}, "spec.sourceType: Required value"},
		"no name":                     {map[string]any{"name": nil}, "spec.name: Required value"},
		"an empty name":               {map[string]any{"name": ""}, "name must have 1 to 253 characters"},
		"a name of 254 characters":    {map[string]any{"name": strings.Repeat("n", 254)}, "name must have 1 to 253 characters"},
		"a checksum of s3":            {map[string]any{"checksum": "md5:" + strings.Repeat("0", 32)}, "checksum works with sourceType http only"},
		"a checksum without a kind":   {map[string]any{"sourceType": "http", "checksum": strings.Repeat("0", 64)}, "checksum must be an algorithm and a hash of its length, as in sha256:<64 hex digits>"},
		"a checksum cut short":        {map[string]any{"sourceType": "http", "checksum": "sha256:00"}, "checksum must be an algorithm and a hash of its length"},
		"a priority beyond bounds":    {map[string]any{"priority": int64(1001)}, "spec.priority: Invalid value: 1001: spec.priority in body should be less than or equal to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), newImage(t, test.changes), client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
			assert.NotContains(t, err.Error(), "p4ss", "answers end up in logs")
		})
	}
}

func TestAllImageErrorsAreReportedAtOnce(t *testing.T) {
	err := adminClient.Create(t.Context(), newImage(t, map[string]any{"diskSize": "24", "url": "ftp://user:secret@example.com/a"}), client.DryRunAll)
	require.ErrorContains(t, err, "diskSize must be at least 1Mi")
	require.ErrorContains(t, err, "url must be the object's address")
	require.ErrorContains(t, err, "url must not carry a user name or password")
}

// TestStoredTextsStayValid stores a url with a line break, as an earlier release accepted,
// and changes other fields.
func TestStoredTextsStayValid(t *testing.T) {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	setRules := func(rules any) (before any) {
		require.NoError(t, adminClient.Get(t.Context(), client.ObjectKey{Name: "vmdiskimages.pelotech.ot"}, crd))
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		require.NoError(t, err)
		url, ok, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "url")
		require.NoError(t, err)
		require.True(t, ok)
		before = url["x-kubernetes-validations"]
		url["x-kubernetes-validations"] = rules
		require.NoError(t, unstructured.SetNestedMap(versions[0].(map[string]any), url, "schema", "openAPIV3Schema", "properties", "spec", "properties", "url"))
		require.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
		require.NoError(t, adminClient.Update(t.Context(), crd))
		return before
	}
	object := newImage(t, map[string]any{"url": "https://example.com/a\n"})
	rules := setRules(nil)
	require.NotEmpty(t, rules)
	require.Eventually(t, func() bool { return adminClient.Create(t.Context(), object) == nil }, testenv.Patience, 20*time.Millisecond)
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), object)) })
	setRules(rules)
	// In a dry run: a change accepted by the rules of before would be stored, and be valid from then on.
	require.Eventually(t, func() bool {
		err := adminClient.Patch(t.Context(), object.DeepCopy(), newMergePatch(`{"spec":{"url":"https://example.com/b\n"}}`), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "url must have no space")
	}, testenv.Patience, 20*time.Millisecond)

	require.NoError(t, adminClient.Patch(t.Context(), object, newMergePatch(`{"metadata":{"finalizers":[]},"spec":{"priority":-1}}`)))
}
