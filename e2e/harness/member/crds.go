//go:build linux

package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const snapshotModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"

// InstallKubeVirtVMCRD installs KubeVirt's VirtualMachine and none of its other kinds, for a
// member without KubeVirt's programs.
func InstallKubeVirtVMCRD(ctx context.Context, config *rest.Config) error {
	paths, err := binaries.Ensure(ctx, binaries.KubeVirt)
	if err != nil {
		return err
	}
	crds, err := printCRDs(ctx, paths, binaries.KubeVirt)
	if err != nil {
		return err
	}
	return controlplane.InstallCRDs(ctx, config, slices.DeleteFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Names.Kind != "VirtualMachine"
	}))
}

// loadCRDs takes the CRDs of CDI and KubeVirt from their programs, and those of snapshots
// from the module with their Go types: both are pinned.
func loadCRDs(ctx context.Context, paths binaries.Paths, o Options) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	for program, wanted := range map[binaries.Name]bool{binaries.CDI: !o.WithoutCDI, binaries.KubeVirt: o.KubeVirt} {
		if !wanted {
			continue
		}
		crds, err := printCRDs(ctx, paths, program)
		if err != nil {
			return nil, err
		}
		all = append(all, crds...)
	}
	if o.KubeVirt {
		all = append(all, networkAttachmentCRD())
	}
	if !o.WithoutSnapshots {
		dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", snapshotModule).Output()
		if err != nil {
			return nil, fmt.Errorf("finding module %s: %w", snapshotModule, err)
		}
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", "snapshot.storage.k8s.io_*.yaml"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("finding the snapshot CRDs below %s (is the module downloaded?): %w", dir, errors.Join(err, os.ErrNotExist))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("reading the snapshot CRDs: %w", err)
			}
			crds, err := decodeCRDs(text)
			if err != nil {
				return nil, fmt.Errorf("reading the snapshot CRDs in %s: %w", file, err)
			}
			all = append(all, crds...)
		}
	}
	return all, nil
}

// printCRDs runs a program of CDI or KubeVirt to get its CRDs.
func printCRDs(ctx context.Context, paths binaries.Paths, program binaries.Name) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := exec.CommandContext(ctx, paths[program], "-print-crds").Output()
	if err != nil {
		return nil, fmt.Errorf("printing the CRDs of %s with %s: %w", program, paths[program], err)
	}
	crds, err := decodeCRDs(text)
	if err != nil {
		return nil, fmt.Errorf("decoding the CRDs of %s: %w", program, err)
	}
	return crds, nil
}

func decodeCRDs(text []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := decoder.Decode(crd); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if crd.Name != "" {
			all = append(all, crd)
		}
	}
}
