package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
	// user is nobody's: the number that distroless images have made usual.
	user = "65532:65532"
)

// blob is content that is known by its digest.
type blob struct {
	digest string
	data   []byte
}

func newBlob(data []byte) blob {
	sum := sha256.Sum256(data)
	return blob{digest: "sha256:" + hex.EncodeToString(sum[:]), data: data}
}

// layoutPath in an OCI layout.
func (b blob) layoutPath() string { return "blobs/sha256/" + strings.TrimPrefix(b.digest, "sha256:") }

// image of one platform.
type image struct {
	architecture            string
	manifest, config, layer blob
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string            `json:"User"`
		Entrypoint []string          `json:"Entrypoint"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// newImage puts a binary, and nothing else, into an image.
func newImage(o options, p program, architecture string, binary []byte) (image, error) {
	var files bytes.Buffer
	writer := tar.NewWriter(&files)
	if err := addFile(writer, o, p.name, 0o755, binary); err != nil {
		return image{}, err
	}
	if err := writer.Close(); err != nil {
		return image{}, err
	}
	plain := newBlob(files.Bytes())
	// The header tells no name and no time.
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	if _, err := zip.Write(plain.data); err != nil {
		return image{}, err
	}
	if err := zip.Close(); err != nil {
		return image{}, err
	}
	made := image{architecture: architecture, layer: newBlob(compressed.Bytes())}

	var c config
	c.platform, c.Created = platform{architecture, "linux"}, o.created
	c.Config.User, c.Config.Entrypoint, c.Config.WorkingDir = user, []string{"/" + p.name}, "/"
	c.Config.Labels = map[string]string{
		"org.opencontainers.image.title":       p.name,
		"org.opencontainers.image.description": p.description,
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.revision":    o.revision,
		"org.opencontainers.image.source":      "https://github.com/pelotech/ot-fleet",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{plain.digest}
	c.History = []history{{o.created, "scripts/images"}}
	var err error
	if made.config, err = encodeJSON(c); err != nil {
		return image{}, err
	}
	made.manifest, err = encodeJSON(manifest{
		SchemaVersion: 2, MediaType: mediaManifest,
		Config: newDescriptor(mediaConfig, made.config),
		Layers: []descriptor{newDescriptor(mediaLayer, made.layer)},
	})
	return made, err
}

func newDescriptor(mediaType string, b blob) descriptor {
	return descriptor{MediaType: mediaType, Digest: b.digest, Size: len(b.data)}
}

func encodeJSON(v any) (blob, error) {
	data, err := json.Marshal(v)
	return newBlob(data), err
}

// writeArchive makes an archive that is an OCI layout. With one image it also is what
// `docker save` writes, for engines that know nothing else.
func writeArchive(o options, name string, all []image) (err error) {
	path := filepath.Join(o.directory, name+".tar")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := writeLayout(file, o, strings.TrimSuffix(name, "-"+all[0].architecture), all); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func writeLayout(to io.Writer, o options, name string, all []image) error {
	writer := tar.NewWriter(to)
	reference := o.registry + "/" + name + ":" + o.version
	top := index{SchemaVersion: 2, MediaType: mediaIndex}
	for _, one := range all {
		d := newDescriptor(mediaManifest, one.manifest)
		d.Platform = &platform{one.architecture, "linux"}
		top.Manifests = append(top.Manifests, d)
	}
	if len(all) > 1 {
		// Of several platforms one index, which the name leads to.
		nested, err := encodeJSON(top)
		if err != nil {
			return err
		}
		if err := addFile(writer, o, nested.layoutPath(), 0o644, nested.data); err != nil {
			return err
		}
		top.Manifests = []descriptor{newDescriptor(mediaIndex, nested)}
	}
	top.Manifests[0].Annotations = map[string]string{
		"org.opencontainers.image.ref.name": o.version,
		"io.containerd.image.name":          reference,
	}
	files := map[string]any{"index.json": top, "oci-layout": map[string]string{"imageLayoutVersion": "1.0.0"}}
	if len(all) == 1 {
		files["manifest.json"] = []map[string]any{{
			"Config": all[0].config.layoutPath(), "RepoTags": []string{reference}, "Layers": []string{all[0].layer.layoutPath()},
		}}
	}
	for _, name := range []string{"oci-layout", "index.json", "manifest.json"} {
		if files[name] == nil {
			continue
		}
		content, err := encodeJSON(files[name])
		if err != nil {
			return err
		}
		if err := addFile(writer, o, name, 0o644, content.data); err != nil {
			return err
		}
	}
	for _, one := range all {
		for _, b := range []blob{one.manifest, one.config, one.layer} {
			if err := addFile(writer, o, b.layoutPath(), 0o644, b.data); err != nil {
				return err
			}
		}
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
