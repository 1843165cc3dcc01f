//go:build linux

package workspaces

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const imageURL = "https://images.example.com/ubuntu.qcow2"

// addresses are what follows "scheme://" in a URL, valid or not.
var addresses = []string{
	"images.example.com/ubuntu.qcow2", "images.example.com", "images.example.com/", "images.example.com:8080/a", "10.0.0.1/a", "a//b", "h_1/a", "H/A",
	"", "/a", ":8080/a", "?a=b", "#a", "/", "h?a=b", "h#a", "h/a#b", "h/a?b=%zz", "h/a?b c=d", "h/a?b=c&d=%20",
	"[::1]/a", "[2001:db8::1]:8443/a", "[fe80::1%25eth0]/a", "[::1", "::1/a", "[::1]a/b", "[::g]/a",
	"h:abc/a", "h:99999/a", "h:-1/a", "h:/a", "h:80:90/a", "user@h/a", "user:pw@h/a", ":pw@h/a", "h/@a", "h/a@b", "h/a:b@sha256:c",
	"h/a b", "h /a", " h/a", "h/a ", "h/a\n", "h\n/a", "h/a\tb", "h/a\x00b", "h/a\x7fb", "h/%zz", "h/%20a", "h/%", "%41/a", "h/ü", "ü.example.com/a",
	"h/<script>", "h<>/a", "h/{a}", "{h}/a", `h/"a"`, `h/a\b`, `h\a/b`, "h/..;/a", "h,h2/a", "*/a", "$(HOST)/a", "${HOST}/a", "h^/a", "h|h2/a", "h`/a",
	"h/" + strings.Repeat("p", 1900), "h/" + strings.Repeat("p", 2100), strings.Repeat("h", 300) + "/a",
}

func newImageCorpus() *corpus {
	c := &corpus{
		kind: "VMDiskImage",
		base: map[string]any{
			"metadata": map[string]any{"name": "image"},
			"spec":     map[string]any{"name": "Ubuntu", "sourceType": "http", "url": imageURL, "diskSize": "24Gi"},
		},
	}
	addImageSpecs(c, "spec.")
	c.vary("metadata.name", objectNames)
	return c
}

// addImageSpecs adds what can be written into a spec of an image at prefix.
func addImageSpecs(c *corpus, prefix string) {
	ofType := func(sourceType any, url any) map[string]any {
		return map[string]any{prefix + "sourceType": sourceType, prefix + "url": url}
	}
	blank := ofType("blank", removed)
	for i, address := range addresses {
		c.add(ofType("http", "https://"+address))
		c.add(ofType("registry", "docker://"+address))
		c.add([]map[string]any{ofType("s3", "https://"+address), ofType("gcs", "gs://"+address)}[i%2])
	}
	for _, sourceType := range []any{"http", "s3", "gcs", "registry", "blank"} {
		for _, scheme := range []string{"http://", "https://", "HTTPS://", "s3://", "gs://", "docker://", "oci-archive://", "oci-archive:///", "ftp://", "http:", "http:/", "//", ""} {
			c.add(ofType(sourceType, scheme+"images.example.com/a"))
		}
		for _, url := range []any{removed, "", int64(1), []any{imageURL}} {
			c.add(ofType(sourceType, url))
		}
	}
	c.vary(prefix+"sourceType", []any{"gs", "HTTP", "", int64(1), removed})
	c.vary(prefix+"diskSize", sizes)
	c.vary(prefix+"diskSize", everySecond(sizes), blank)
	for i, field := range []string{"storageClass", "secretRef", "certConfigMap", "snapshotClass"} {
		if i == 0 {
			c.vary(prefix+field, objectNames)
		} else {
			c.vary(prefix+field, everySecond(objectNames))
		}
	}
	hex := strings.Repeat("0a", 64)
	c.vary(prefix+"checksum", []any{
		"md5:" + hex[:32], "sha1:" + hex[:40], "sha256:" + hex[:64], "sha512:" + hex, "sha256:" + strings.ToUpper(hex[:64]),
		"", "sha256:", ":" + hex[:64], hex[:64], "sha256:" + hex[:63], "sha256:" + hex[:65], "sha384:" + hex[:96], "SHA256:" + hex[:64], "sha256=" + hex[:64],
		"sha256:" + hex[:62] + "zz", "sha256: " + hex[:64], "sha256:" + hex[:64] + "\n", " sha256:" + hex[:64], "md5:" + hex[:64], "crc32:00000000", int64(5), true,
	})
	c.vary(prefix+"name", []any{"", " a", "a ", "a\n", "a\nb", "ü 24.04", strings.Repeat("n", 253), strings.Repeat("n", 254), strings.Repeat("n", 1100), int64(1), removed})
	c.vary(prefix+"priority", []any{int64(-1001), int64(-1000), int64(0), int64(1000), int64(1001), 1.5, "1", int64(1 << 40)})
	c.vary(prefix+"deleteUnreferencedAfter", []any{"72h", "1m", "59s", "0", "0s", "-1h", "1d", "1h30m", "72h\n", " 1h", "", "1.5h", "1h1h", "9999999h", strings.Repeat("9", 31) + "h", int64(5)})
	c.vary(prefix+"unknown", []any{"a"})
	c.vary(prefix+"publish", []any{map[string]any{"dataSource": true}, map[string]any{"dataSource": false}, map[string]any{"name": "a"}, map[string]any{"dataSource": false, "name": "a"}, map[string]any{}, "ubuntu", true})
	c.vary(prefix+"defaults", []any{
		map[string]any{}, map[string]any{"instancetype": "u1.medium", "preference": "fedora"}, map[string]any{"instancetypeKind": "VirtualMachineInstancetype"}, map[string]any{"preferenceKind": "VirtualMachinePreference"},
		map[string]any{"instancetype": "a", "instancetypeKind": "VirtualMachineInstancetype", "preference": "b", "preferenceKind": "VirtualMachinePreference"}, map[string]any{"instancetype": "a", "instancetypeKind": "Instancetype"}, "u1.medium",
	}, map[string]any{prefix + "publish": map[string]any{"dataSource": true}})
	for _, name := range objectNames {
		c.vary(prefix+"publish", []any{map[string]any{"dataSource": true, "name": name}})
		c.vary(prefix+"defaults", []any{map[string]any{"instancetype": name}, map[string]any{"preference": name}}, map[string]any{prefix + "publish": map[string]any{"dataSource": true}})
	}
	for _, header := range []any{
		"X-Tenant: blue", "X-Tenant:blue", "X-Tenant", ": blue", "X-Tenant: ", "X Tenant: blue", "X-Tenant : blue", "X-Tenant: a\nX-Other: b", "X-Tenant: ü", "Host: h", "range: bytes=0-1",
		"Metadata-Flavor: Google", "X-Tenant: $(HOST)", "X-Tenant: $$", "X-Tenant: $1", "", strings.Repeat("x", 257), int64(1),
	} {
		c.vary(prefix+"extraHeaders", []any{[]any{header}})
	}
	c.vary(prefix+"extraHeaders", []any{[]any{}, []any{"A: 1", "A: 1"}, []any{"A: 1", "A: 1", "A: 1", "A: 1", "A: 1", "A: 1", "A: 1", "A: 1", "A: 1"}, "A: 1"})
	for _, host := range []string{"metadata.google.internal", "169.254.169.254:80", "[fd00:ec2::254]", "metadata.example.com"} {
		c.vary(prefix+"extraHeaders", []any{[]any{"A: 1"}, removed}, ofType("http", "http://"+host+"/a"))
	}
	for _, name := range everySecond(objectNames) {
		c.vary(prefix+"secretExtraHeaders", []any{[]any{name}})
	}
	c.vary(prefix+"secretExtraHeaders", []any{[]any{}, []any{"a", "a"}, []any{"a", "b", "c", "d", "e"}, "a"})
	for _, sourceType := range []map[string]any{nil, ofType("s3", imageURL), ofType("gcs", "gs://bucket/a"), ofType("registry", "docker://h/a"), ofType("registry", "oci-archive:///a"), blank} {
		c.vary(prefix+"pullMethod", []any{"pod", "node", "Node", ""}, sourceType)
		c.vary(prefix+"extraHeaders", []any{[]any{"A: 1"}}, sourceType)
		c.vary(prefix+"secretExtraHeaders", []any{[]any{"a"}}, sourceType)
		c.vary(prefix+"certConfigMap", []any{"authorities"}, sourceType)
	}
	for _, sourceType := range []map[string]any{nil, ofType("registry", "docker://h/a"), ofType("registry", "oci-archive:///a"), blank} {
		c.vary(prefix+"architecture", []any{"amd64", "arm64", "s390x", "x86_64", "AMD64", "", int64(1)}, sourceType)
	}
	dataSource := ofType("dataSource", removed)
	for _, name := range everySecond(objectNames) {
		c.vary(prefix+"dataSource", []any{map[string]any{"namespace": "os", "name": name}, map[string]any{"namespace": name, "name": "a"}}, dataSource)
	}
	c.vary(prefix+"dataSource", []any{map[string]any{"name": "fedora"}, map[string]any{}, removed, "fedora"}, dataSource)
	c.vary(prefix+"dataSource", []any{map[string]any{"name": "fedora"}}, ofType("http", imageURL))
	for _, field := range []string{"url", "secretRef", "certConfigMap", "storageClass", "snapshotClass", "checksum", "pullMethod", "architecture"} {
		c.vary(prefix+field, []any{"pod"}, map[string]any{prefix + "sourceType": "dataSource", prefix + "url": removed, prefix + "dataSource": map[string]any{"name": "fedora"}})
	}
	node := map[string]any{prefix + "sourceType": "registry", prefix + "url": "docker://h/a", prefix + "pullMethod": "node"}
	c.vary(prefix+"secretRef", []any{"credentials"}, node)
	c.vary(prefix+"certConfigMap", []any{"authorities"}, node)
	c.varyAll(map[string][]any{
		prefix + "sourceType": {"http", "s3", "registry", "blank"}, prefix + "url": {imageURL, removed},
		prefix + "secretRef": {"credentials", removed}, prefix + "certConfigMap": {"authorities", removed},
		prefix + "checksum": {"sha256:" + hex[:64], removed},
	})
}

// submitImage sends the DataVolume of an image.
func submitImage(t *testing.T, _ string, object *unstructured.Unstructured) error {
	img := &v1alpha1.VMDiskImage{}
	if err := decode(object, img); err != nil {
		return err
	}
	return submitDataVolume(t, img)
}

// submitDataVolume sends what the agent's own dry run sends.
func submitDataVolume(t *testing.T, img *v1alpha1.VMDiskImage) error {
	if err := checkNames(map[string]string{
		"VMDiskImage": img.Name, "Secret": img.Spec.SecretRef, "ConfigMap": img.Spec.CertConfigMap, "StorageClass": img.Spec.StorageClass, "VolumeSnapshotClass": img.Spec.SnapshotClass,
	}); err != nil {
		return err
	}
	for _, name := range img.Spec.SecretExtraHeaders {
		if err := checkNames(map[string]string{"Secret": name}); err != nil {
			return err
		}
	}
	if name := image.PublishedName(img); name != "" {
		if err := submitDataSource(t, img, name); err != nil {
			return err
		}
	}
	if image.UsesDataSource(&img.Spec) { // nothing is created for it
		source := image.DataSourceKey(img)
		return checkNames(map[string]string{"DataSource": source.Name, "Namespace": source.Namespace})
	}
	key := image.KeyOf(img)
	dv := image.NewDataVolume(img, v1alpha1.Slot{Image: key, Revision: img.Spec.Revision(), Attempt: 1, DataVolume: ledger.DataVolumeName(key, 1)})
	dv.Labels = nil
	return client.WithFieldValidation(env.Client(), metav1.FieldValidationStrict).Create(t.Context(), dv, client.DryRunAll)
}

// submitDataSource sends a DataSource as the agent makes it.
func submitDataSource(t *testing.T, img *v1alpha1.VMDiskImage, name string) error {
	ds := &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: img.Namespace, Name: name, Labels: map[string]string{}}}
	if d := img.Spec.Defaults; d != nil {
		for kind, value := range map[string]string{"instancetype": d.Instancetype, "instancetype-kind": d.InstancetypeKind, "preference": d.Preference, "preference-kind": d.PreferenceKind} {
			if value != "" {
				ds.Labels["instancetype.kubevirt.io/default-"+kind] = value
			}
		}
	}
	return client.WithFieldValidation(env.Client(), metav1.FieldValidationStrict).Create(t.Context(), ds, client.DryRunAll)
}

// imageWaitReason is what the agent makes of the answer to its dry run.
func imageWaitReason(err error) v1alpha1.Reason {
	if len(apidiscovery.UnknownFields(err)) > 0 {
		return v1alpha1.ReasonCDITooOld
	}
	if cause := importcause.OfAnswer(err); cause != nil && cause.NeedsPerson {
		return cause.Reason
	}
	return ""
}

var imageWaits = []difference{
	{refusal: regexp.MustCompile(`unknown field`), why: "CDI before 1.65 knows no checksum", reason: v1alpha1.ReasonCDITooOld, otherVersions: true},
}

// stricterImages are the rules of an image's spec that CDI's webhook does not have.
var stricterImages = []difference{
	{refusal: regexp.MustCompile(`takes no url|downloads nothing|works? with|does not work with|with pullMethod node|unknown field`), why: "it would be ignored in silence"},
	{refusal: regexp.MustCompile(`sourceType dataSource`), why: "it would be ignored in silence"},
	{refusal: regexp.MustCompile(`dataSource\.?(name|namespace)?: `), why: "no DataSource has such a name"},
	{refusal: regexp.MustCompile(`architecture: Unsupported`), why: "no machine has it"},
	{refusal: regexp.MustCompile(`user name or password`), why: "passwords belong into Secrets"},
	{refusal: regexp.MustCompile(`metadata service`), why: "metadata services have credentials, and no images"},
	{refusal: regexp.MustCompile(`[eE]xtraHeaders`), why: "the importer would send another header, or none"},
	{refusal: regexp.MustCompile(`pullMethod: Unsupported`), why: "there is no such method"},
	{refusal: regexp.MustCompile(`url must (start with|be the object's address|be gs:)`), why: "CDI's importer of this type knows no such scheme"},
	{refusal: regexp.MustCompile(`url must name a host`), why: "there is nothing to download from"},
	{refusal: regexp.MustCompile(`no space at its beginning or end|url: Too long|not a valid URL|checksum must be`), why: "it is a mistake of writing"},
	{refusal: regexp.MustCompile(`diskSize must be`), why: "no disk has this size"},
	{refusal: regexp.MustCompile(`spec\S*\.(name|priority|deleteUnreferencedAfter|sourceType): `), why: "the field is the agent's alone"},
	{refusal: regexp.MustCompile(`publish|defaults`), why: "KubeVirt would find nothing of that name or kind"},
	{refusal: regexp.MustCompile(`should be at least 1 chars long`), why: "an empty name names nothing"},
}

func TestCorpusOfImages(t *testing.T) {
	t.Parallel()
	c := newImageCorpus()
	c.submit, c.waitReason, c.waits, c.stricter = submitImage, imageWaitReason, imageWaits, stricterImages
	c.compare(t, env.CreateNamespace(t), 300)
}
