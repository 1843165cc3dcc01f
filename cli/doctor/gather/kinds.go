package gather

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"

	"github.com/pelotech/ot-fleet/cli/doctor"
)

// maxVersionBytes bounds the answer of /version.
const maxVersionBytes = 64 << 10

func (r *reader) decodeVersion(response *http.Response) error {
	if response.StatusCode == http.StatusUnauthorized {
		return apierrors.NewUnauthorized("the credential is not accepted")
	}
	if response.StatusCode != http.StatusOK {
		r.snapshot.Unread[doctor.SourceVersion] = fmt.Sprintf("%s: the API server answered %s", doctor.SourceVersion, response.Status)
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxVersionBytes))
	if err != nil {
		return err
	}
	var info version.Info
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("decoding the version of the API server: %w", err)
	}
	r.snapshot.Kubernetes = info.GitVersion
	return nil
}

// wantedKinds are asked for, by group and version.
func wantedKinds() map[string][]string {
	wanted := map[string][]string{}
	kinds := []string{doctor.KindValidatingPolicy, doctor.KindDataVolume, doctor.KindSnapshot, doctor.KindKubeVirtMachine, doctor.KindImage}
	for _, v := range doctor.MutatingPolicyVersions {
		kinds = append(kinds, doctor.KindMutatingPolicy(v))
	}
	for _, kind := range kinds {
		parts := strings.SplitN(kind, ".", 3)
		groupVersion := parts[2] + "/" + parts[1]
		wanted[groupVersion] = append(wanted[groupVersion], kind)
	}
	return wanted
}

func (r *reader) readKinds(context.Context) {
	c, err := discovery.NewDiscoveryClientForConfig(r.Config)
	if !r.unless(doctor.SourceKinds, err) {
		return
	}
	for groupVersion, kinds := range wantedKinds() {
		resources, err := c.ServerResourcesForGroupVersion(groupVersion)
		if isAbsent(err) {
			continue
		}
		if !r.unless(doctor.SourceKinds, err) {
			return
		}
		for _, kind := range kinds {
			name, _, _ := strings.Cut(kind, ".")
			for i := range resources.APIResources {
				if resources.APIResources[i].Kind == name {
					r.snapshot.Served = append(r.snapshot.Served, kind)
					break
				}
			}
		}
	}
	slices.Sort(r.snapshot.Served)
}
