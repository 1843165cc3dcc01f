package chart

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const manifestSeparator = "\n---\n"

// largeDocument is the size in bytes from which decoded documents are kept: those of
// CustomResourceDefinitions, which are the same for all values of a chart.
const largeDocument = 8 << 10

// largeDocuments has the objects of large documents by the hash of their text. Invariant: they are
// never changed.
var largeDocuments sync.Map

// ParseManifest decodes the YAML documents of a manifest and skips empty ones.
func ParseManifest(manifest []byte) ([]*unstructured.Unstructured, error) {
	shared, err := parseShared(manifest)
	return copyObjects(shared), err
}

// parseShared is ParseManifest, for callers that do not change the objects.
func parseShared(manifest []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		var objects []*unstructured.Unstructured
		if err == nil {
			objects, err = parseDocument(document)
		}
		if err != nil {
			return nil, fmt.Errorf("reading object %d of a manifest: %w", len(all)+1, err)
		}
		all = append(all, objects...)
	}
}

// parseDocument decodes a document of YAML, or several objects of JSON.
func parseDocument(document []byte) ([]*unstructured.Unstructured, error) {
	large, key := len(document) >= largeDocument, [sha256.Size]byte{}
	if large {
		key = sha256.Sum256(document)
		if known, ok := largeDocuments.Load(key); ok {
			return known.([]*unstructured.Unstructured), nil
		}
	}
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(document), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	if large {
		largeDocuments.Store(key, objects)
	}
	return objects, nil
}

func copyObjects(objects []*unstructured.Unstructured) (copies []*unstructured.Unstructured) {
	for _, object := range objects {
		copies = append(copies, object.DeepCopy())
	}
	return copies
}
