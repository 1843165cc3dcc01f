//go:build linux

package walkthrough

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
)

// inFrankfurt has a command run in the member frankfurt.
func (r *Reader) inFrankfurt(arguments ...string) (replace []string) {
	return []string{"kubectl ", strings.Join(append([]string{"kubectl --context", r.Frankfurt.Name}, arguments...), " ") + " "}
}

// followImages applies the examples of images and machines to a member and waits as the pages
// say. The machine stays without one of KubeVirt where that is not run.
func followImages(t *testing.T, r *Reader) {
	ensureNamespaces(t, r.Frankfurt.Client, "workspace-7")
	image := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: "ubuntu-22"}}
	machine := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "workspace-7", Name: "desk-1"}}
	fleetjourneys.DeleteAfterTest(t, r.Frankfurt.Client, machine, image)
	apply := func(file, example string) {
		r.WriteFile(t, file, example)
		r.MustRun(t, "kubectl --context "+r.Frankfurt.Name+" apply -f "+file)
	}
	apply("ubuntu-22.yaml", r.example(t, ImagesPage, "kind: VMDiskImage", image.Name))
	r.Run(t, FindCommand(t, ImagesPage, "kubectl wait vmdi/ubuntu-22"), r.inFrankfurt("--namespace", image.Namespace)...)

	for _, part := range []string{"secretExtraHeaders:", "kind: Secret", "pullMethod: node"} {
		r.WriteFile(t, "source.yaml", pages.Read(t, SourcesPage).Block(t, "yaml", part))
		r.MustRun(t, "kubectl --context "+r.Frankfurt.Name+" apply --dry-run=server -f source.yaml")
	}
	example := pages.Read(t, MachinesPage).Block(t, "yaml", "metadata: {name: desk-1")
	wait := FindCommand(t, MachinesPage, "kubectl wait otvm/desk-1")
	if r.isListed(wait) {
		apply("desk-1.yaml", strings.Replace(example, "spec:\n", "spec:\n  ignoreOnDeploy: true\n", 1))
	} else {
		apply("desk-1.yaml", example)
		r.Run(t, wait, r.inFrankfurt("--namespace", machine.Namespace)...)
	}
	r.columns(t, ImagesPage, "kubectl get vmdi -A", r.inFrankfurt()...)
	r.columns(t, MachinesPage, "kubectl get otvm -A", r.inFrankfurt()...)
}

// tryWrites has the API server check the commands that would cut off a member, or grant rights to
// accounts that the reader does not have. Other tests do what they do.
func tryWrites(t *testing.T, r *Reader) {
	ensureNamespaces(t, r.hub, "images", "workspace")
	createOnce(t, r.hub, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "ot-hub-departed"}})
	for page, commands := range map[string][]string{
		MachinesPage:             {"rolebinding workspace-authors", "rolebinding secrets-for-ot-agent"},
		"docs/operate/budget.md": {"annotate configmap ot-hub-departed"},
		MembersPage:              {"delete secret ot-hub-access", "delete secret ot-hub-token", "patch secret frankfurt", `"quarantine":{"reason"`},
	} {
		for _, command := range commands {
			r.Run(t, FindCommand(t, page, command), " create rolebinding", " create --dry-run=server rolebinding", " delete ", " delete --dry-run=server ", " patch ", " patch --dry-run=server ", " annotate ", " annotate --dry-run=server ")
		}
	}
	r.Run(t, FindCommand(t, MachinesPage, "auth can-i clone"), "kubectl --namespace", "kubectl --context "+r.Frankfurt.Name+" --namespace", "--as alice", "|| true")
}

// followEdit ends an editor without a change.
func followEdit(t *testing.T, r *Reader) {
	assert.Contains(t, r.Run(t, FindCommand(t, InstallPage, "edit configmap"), "kubectl", "EDITOR=true kubectl"), "no changes made")
}

// ofMember matches what is read in a member.
var ofMember = regexp.MustCompile(` (vmdi|otvm|syncledgers) |vmdiskimage|otvm`)

// followReads runs every other command that reads, and checks the columns that pages show.
func followReads(t *testing.T, r *Reader) {
	for _, page := range pages.List(t) {
		for _, command := range page.Commands() {
			if r.done[command] || !strings.HasPrefix(command, "kubectl get") && !strings.HasPrefix(command, "kubectl explain") || r.isListed(command) {
				continue
			}
			if strings.Contains(page.Text(), "$ "+command+"\n") {
				r.columns(t, page.Path, command)
				continue
			}
			replace := []string{}
			if ofMember.MatchString(command) {
				replace = r.inFrankfurt()
			}
			// What follows a pipe may delete what was found, or need other tools.
			if _, rest, ok := strings.Cut(command, "|"); ok {
				replace = append(replace, "|"+rest, "")
			}
			r.Run(t, command, replace...)
		}
	}
}

// createImage creates an image in frankfurt that the source serves, until the test ends.
func (r *Reader) createImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: name}, Spec: r.fleet.PageImage(name)}
	createOnce(t, r.Frankfurt.Client, img)
	return img
}
