// Command typescript writes ui/src/api.ts: what the dashboard reads and writes, as TypeScript
// types made from the Go structs that the hub encodes. It runs in the repository's root.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// module is the path of this module: comments and enums of its packages are known.
const module = "github.com/pelotech/ot-fleet"

// sources are the packages of which each struct with JSON fields is written, with all that
// those structs hold.
var sources = []string{module + "/api/readapi", module + "/ui"}

// objects are further structs: what the dashboard writes.
var objects = []string{
	module + "/api/v1alpha1.FleetDiskImage",
	module + "/api/v1alpha1.ImagePrune",
	module + "/api/v1alpha1.MemberCluster",
	module + "/api/v1alpha1.PruneReport",
}

var target = filepath.Join("ui", "src", "api.ts")

func main() {
	if err := writeFile(target); err != nil {
		fmt.Fprintln(os.Stderr, "typescript:", err)
		os.Exit(1)
	}
}

func writeFile(to string) error {
	text, err := generate(sources, objects)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", to, err)
	}
	if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the types: %w", err)
	}
	return nil
}

// generate returns the file for the structs of packages and for further structs.
func generate(packages, objects []string) (string, error) {
	loaded, err := loadPackages(packages, objects)
	if err != nil {
		return "", err
	}
	w := newWriter(loaded)
	for _, path := range packages {
		if err := w.writePackage(path); err != nil {
			return "", err
		}
	}
	for _, name := range objects {
		if err := w.writeObject(name); err != nil {
			return "", err
		}
	}
	return w.render()
}
