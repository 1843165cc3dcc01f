package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonRootUser is the unprivileged user of distroless images.
const nonRootUser = "65532:65532"

// newImage returns an image whose only file is the binary.
func newImage(o options, p program, architecture string, binary []byte) (v1.Image, error) {
	var files bytes.Buffer
	writer := tar.NewWriter(&files)
	if err := addFile(writer, o, p.name, 0o755, binary); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("making the layer of %s: %w", p.name, err)
	}
	created := v1.Time{Time: o.created}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: architecture, OS: "linux", Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: nonRootUser, Entrypoint: []string{"/" + p.name}, WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":       p.name,
				"org.opencontainers.image.description": p.description,
				"org.opencontainers.image.version":     o.version,
				"org.opencontainers.image.revision":    o.revision,
				"org.opencontainers.image.source":      "https://github.com/pelotech/ot-fleet",
				"org.opencontainers.image.licenses":    "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("making the config of %s: %w", p.name, err)
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "scripts/images"}})
}

// platformImage is an image and the architecture it is for.
type platformImage struct {
	v1.Image
	architecture string
}

// writeArchive writes an archive of an OCI layout. The archive of a single image can be
// read by `docker load` as well.
func writeArchive(o options, file, name string, images []platformImage) error {
	directory, err := os.MkdirTemp("", "ot-images-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	if err := writeLayout(o, directory, name, images); err != nil {
		return fmt.Errorf("writing the layout of %s: %w", file, err)
	}
	path := filepath.Join(o.directory, file+".tar")
	if err := archiveDirectory(o, directory, path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func writeLayout(o options, directory, name string, images []platformImage) error {
	reference := o.registry + "/" + name + ":" + o.version
	annotations := map[string]string{
		"org.opencontainers.image.ref.name": o.version,
		"io.containerd.image.name":          reference,
	}
	manifests := make([]mutate.IndexAddendum, 0, len(images))
	for _, image := range images {
		manifests = append(manifests, mutate.IndexAddendum{Add: image.Image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{Architecture: image.architecture, OS: "linux"},
		}})
	}
	if len(images) > 1 {
		// The name leads to an index of all platforms.
		all := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), manifests...)
		manifests = []mutate.IndexAddendum{{Add: all}}
	}
	manifests[0].Descriptor.Annotations = annotations
	top := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), manifests...)
	path, err := layout.Write(directory, top)
	if err != nil || len(images) > 1 {
		return err
	}
	manifest, err := images[0].Manifest()
	if err != nil {
		return err
	}
	// What `docker save` writes: it knows one platform.
	saved, err := json.Marshal([]map[string]any{{
		"Config": blobPath(manifest.Config.Digest), "RepoTags": []string{reference}, "Layers": []string{blobPath(manifest.Layers[0].Digest)},
	}})
	if err != nil {
		return err
	}
	return path.WriteFile("manifest.json", saved, 0o644)
}

// blobPath is where an OCI layout has a blob.
func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// archiveDirectory archives the files of a directory, by name, as of the one time.
func archiveDirectory(o options, directory, path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	writer := tar.NewWriter(file)
	// WalkDir walks in lexical order.
	err = filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return addFile(writer, o, filepath.ToSlash(name), 0o644, data)
	})
	if err != nil {
		return err
	}
	return writer.Close()
}

func addFile(writer *tar.Writer, o options, name string, mode int64, data []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: o.created, Format: tar.FormatUSTAR}
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err := writer.Write(data)
	return err
}
