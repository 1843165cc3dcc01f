//go:build linux

package chart_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newOverride returns an override of all clusters.
func newOverride(fields map[string]any) map[string]any {
	override := map[string]any{"clusterSelector": map[string]any{}}
	maps.Copy(override, fields)
	return override
}

// TestValidOverrides decodes them as well: an empty text differs from none.
func TestValidOverrides(t *testing.T) {
	url := func(text string) map[string]any { return map[string]any{"url": text} }
	for name, fields := range map[string]map[string]any{
		"nothing":                         {},
		"clusters by name":                {"clusterSelector": nil, "clusterNames": []any{"bergen"}},
		"a url":                           url("https://mirror.example.com:8443/a%20b?c=d"),
		"a url of a label":                url("https://images.${labels.site}.example.com/ubuntu.qcow2"),
		"a url of a label with a prefix":  url("https://${labels.topology.kubernetes.io/region}.example.com/a"),
		"a url of a label in capitals":    url("https://${labels.Site_1.x}.example.com/a"),
		"a url of a cluster":              url("https://images.example.com/${cluster.name}/a"),
		"a url of several variables":      url("docker://${labels.a}-${cluster.name}.example.com/${labels.b}"),
		"a url that begins with variable": url("https://${cluster.name}"),
		"a url with a dollar":             url("https://images.example.com/$a/b$"),
		"a url with braces":               url("https://images.example.com/%7Ba%7D"),
		"a long url":                      url("https://images.example.com/" + strings.Repeat("a", 2048-27)),
		"an archive":                      url("oci-archive:///mnt/a.tar"),
		"all that empty text removes":     {"url": "", "checksum": "", "secretRef": "", "certConfigMap": "", "storageClass": "", "snapshotClass": "", "extraHeaders": []any{}, "secretExtraHeaders": []any{}},
		"all of a download":               {"sourceType": "http", "url": "https://a.example.com/b", "checksum": "sha256:" + strings.Repeat("0", 64), "secretRef": "a.b", "certConfigMap": "c", "extraHeaders": []any{"X-Tenant: blue"}, "secretExtraHeaders": []any{"token"}},
		"all of storage":                  {"storageClass": "ceph.rbd", "snapshotClass": "ceph", "diskSize": "64Ti", "architecture": "arm64", "priority": int64(-1000)},
		"a disk size in bytes":            {"diskSize": "1048576"},
		"a node's pull":                   {"sourceType": "registry", "url": "docker://zot.example.com/a", "pullMethod": "node"},
		"a DataSource":                    {"sourceType": "dataSource", "url": "", "dataSource": map[string]any{"name": "fedora", "namespace": "images"}},
	} {
		t.Run(name, func(t *testing.T) {
			override := newOverride(fields)
			maps.DeleteFunc(override, func(_ string, value any) bool { return value == nil })
			object := newFleetImage(t, map[string]any{"overrides": []any{override}})
			require.NoError(t, adminClient.Create(t.Context(), object, client.DryRunAll))
			stored := &v1alpha1.FleetDiskImage{}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, stored))
			encoded, err := runtime.DefaultUnstructuredConverter.ToUnstructured(stored)
			require.NoError(t, err)
			got := encoded["spec"].(map[string]any)["overrides"].([]any)[0].(map[string]any)
			assert.Equal(t, override, got)
		})
	}
	t.Run("the most", func(t *testing.T) {
		most := repeat(v1alpha1.MaxOverrides, func(i int) any {
			return newOverride(map[string]any{
				"clusterNames": repeat(100, func(n int) any { return fmt.Sprintf("cluster-%d", n) }),
				"url":          "https://${labels.site}.example.com/" + strings.Repeat("a", 2000), "checksum": "sha512:" + strings.Repeat("0", 128),
				"secretRef": strings.Repeat("s", 253), "certConfigMap": strings.Repeat("c", 253), "storageClass": strings.Repeat("c", 253), "snapshotClass": strings.Repeat("c", 253),
				"extraHeaders":       repeat(8, func(n int) any { return fmt.Sprintf("X-%d: %s", n, strings.Repeat("v", 200)) }),
				"secretExtraHeaders": repeat(4, func(n int) any { return fmt.Sprintf("%d%s", n, strings.Repeat("s", 252)) }),
				"diskSize":           fmt.Sprintf("%dGi", i+1),
			})
		})
		require.NoError(t, adminClient.Create(t.Context(), newFleetImage(t, map[string]any{"overrides": most}), client.DryRunAll))
	})
}

func TestInvalidOverridesAreRejected(t *testing.T) {
	const (
		nowhere  = "an override selects no cluster: set clusterSelector ({} for all) or clusterNames"
		oneLine  = "url must have no space at its beginning or end, and no line break"
		variable = "url has an unknown variable: there are ${labels.<key>}, with the key of a label of the MemberCluster, and ${cluster.name}"
		host     = "url must name a host, as in https://images.example.com/ubuntu.qcow2"
		notURL   = "url is not a valid URL"
		size     = "diskSize must be"
		tooLong  = "Too long: may not be more than"
		header   = "each of extraHeaders must be one line as in 'X-Tenant: blue'"
	)
	for name, test := range map[string]struct {
		fields map[string]any
		says   string
	}{
		"no cluster":                        {map[string]any{"clusterSelector": nil}, nowhere},
		"no names":                          {map[string]any{"clusterSelector": nil, "clusterNames": []any{}}, nowhere},
		"a cluster in capitals":             {map[string]any{"clusterNames": []any{"Oslo"}}, "no MemberCluster can have this name"},
		"a cluster twice":                   {map[string]any{"clusterNames": []any{"oslo", "oslo"}}, "Duplicate value"},
		"too many clusters":                 {map[string]any{"clusterNames": repeat(101, func(i int) any { return fmt.Sprint(i) })}, "must have at most 100 items"},
		"another source type":               {map[string]any{"sourceType": "ftp"}, `Unsupported value: "ftp"`},
		"an empty source type":              {map[string]any{"sourceType": ""}, `Unsupported value: ""`},
		"a url of a YAML block":             {map[string]any{"url": "https://images.example.com/a\n"}, oneLine},
		"a url of two lines":                {map[string]any{"url": "https://images.example.com/a\nb"}, oneLine},
		"another variable":                  {map[string]any{"url": "https://${cluster.uid}.example.com/a"}, variable},
		"a variable of nothing":             {map[string]any{"url": "https://${}.example.com/a"}, variable},
		"a variable without its end":        {map[string]any{"url": "https://a.example.com/${labels.site"}, variable},
		"a label of no name":                {map[string]any{"url": "https://${labels.}.example.com/a"}, variable},
		"a label of a bad prefix":           {map[string]any{"url": "https://${labels.A.b/c}.example.com/a"}, variable},
		"a label of two prefixes":           {map[string]any{"url": "https://${labels.a/b/c}.example.com/a"}, variable},
		"a variable within one":             {map[string]any{"url": "https://${labels.${cluster.name}}.example.com/a"}, variable},
		"an annotation":                     {map[string]any{"url": "https://${annotations.site}.example.com/a"}, variable},
		"a url without a host":              {map[string]any{"url": "https:///a"}, host},
		"a url of a path":                   {map[string]any{"url": "/a"}, host},
		"a url of a bad port":               {map[string]any{"url": "https://images.example.com:x/a"}, notURL},
		"a url with a password":             {map[string]any{"url": "https://user:secret@example.com/a"}, "url must not carry a user name or password"},
		"a url of a variable as a password": {map[string]any{"url": "https://user:${labels.key}@example.com/a"}, "url must not carry a user name or password"},
		"a url that is too long":            {map[string]any{"url": "https://images.example.com/" + strings.Repeat("a", 2048)}, tooLong},
		"a short checksum":                  {map[string]any{"checksum": "sha256:00"}, "checksum must be an algorithm and a hash of its length"},
		"a Secret of two lines":             {map[string]any{"secretRef": "a\nb"}, "secretRef must be the name of a Secret"},
		"a ConfigMap in capitals":           {map[string]any{"certConfigMap": "CA"}, "certConfigMap must be the name of a ConfigMap"},
		"a storage class with a space":      {map[string]any{"storageClass": "ceph "}, "storageClass must be the name of a StorageClass"},
		"a snapshot class with a slash":     {map[string]any{"snapshotClass": "a/b"}, "snapshotClass must be the name of a VolumeSnapshotClass"},
		"too many headers":                  {map[string]any{"extraHeaders": repeat(9, func(i int) any { return fmt.Sprintf("X-%d: a", i) })}, "must have at most 8 items"},
		"a header without a colon":          {map[string]any{"extraHeaders": []any{"X-Tenant"}}, header},
		"a header of two lines":             {map[string]any{"extraHeaders": []any{"X-Tenant: a\nX-Other: b"}}, header},
		"a header of a secret in capitals":  {map[string]any{"secretExtraHeaders": []any{"Token"}}, "each of secretExtraHeaders must be the name of a Secret"},
		"a header of no secret":             {map[string]any{"secretExtraHeaders": []any{""}}, "secretExtraHeaders[0]"},
		"a secret twice":                    {map[string]any{"secretExtraHeaders": []any{"a", "a"}}, "Duplicate value"},
		"another pull method":               {map[string]any{"pullMethod": "nod"}, `Unsupported value: "nod": supported values: "pod", "node"`},
		"a size without a unit":             {map[string]any{"diskSize": "24"}, size},
		"a size in words":                   {map[string]any{"diskSize": "24GB"}, size},
		"a size of a number":                {map[string]any{"diskSize": int64(1 << 30)}, "diskSize in body must be of type string"},
		"a size beyond all":                 {map[string]any{"diskSize": "65Ti"}, size},
		"another architecture":              {map[string]any{"architecture": "x86_64"}, `Unsupported value: "x86_64": supported values: "amd64", "arm64", "s390x"`},
		"a DataSource without a name":       {map[string]any{"dataSource": map[string]any{"namespace": "a"}}, "dataSource.name: Required value"},
		"a DataSource in capitals":          {map[string]any{"dataSource": map[string]any{"name": "Fedora"}}, "name must be the name of a DataSource"},
		"a priority beyond all":             {map[string]any{"priority": int64(1001)}, "should be less than or equal to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			override := newOverride(test.fields)
			maps.DeleteFunc(override, func(_ string, value any) bool { return value == nil })
			err := adminClient.Create(t.Context(), newFleetImage(t, map[string]any{"overrides": []any{newOverride(nil), override}}), client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "spec.overrides[1]")
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
		})
	}
	t.Run("too many", func(t *testing.T) {
		overrides := repeat(v1alpha1.MaxOverrides+1, func(int) any { return newOverride(nil) })
		err := adminClient.Create(t.Context(), newFleetImage(t, map[string]any{"overrides": overrides}), client.DryRunAll)
		require.ErrorContains(t, err, "spec.overrides: Too many: 17: must have at most 16 items")
	})
	t.Run("a template with a variable", func(t *testing.T) {
		err := adminClient.Create(t.Context(), newFleetImage(t, map[string]any{"template.url": "https://images.example.com/${labels.site}/a"}), client.DryRunAll)
		require.ErrorContains(t, err, "the template's url is the same for all clusters: write a url with variables such as ${labels.site} into spec.overrides")
	})
}
