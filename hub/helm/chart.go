package helm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/ignore"
	"k8s.io/apimachinery/pkg/util/version"
)

// Chart is the agent's chart in the version of the hub.
type Chart struct {
	files   []*archive.BufferedFile
	version string
	digest  string
	// sourceVersion is the version in the chart's own file.
	sourceVersion string
}

// Version returns the version of the hub, which is the agent's unless values name
// another.
func (c *Chart) Version() string { return c.version }

// SourceVersion returns the agent's version in the chart's own file.
func (c *Chart) SourceVersion() string { return c.sourceVersion }

// LoadChart reads a chart from a folder. version is the hub's own: it installs the agent
// that was built with it.
func LoadChart(files fs.FS, folder, version string) (*Chart, error) {
	rules := ignore.Empty()
	text, err := fs.ReadFile(files, path.Join(folder, ignore.HelmIgnore))
	if err == nil {
		rules, err = ignore.Parse(bytes.NewReader(text))
	}
	if err != nil {
		return nil, fmt.Errorf("reading what chart %s leaves out: %w", folder, err)
	}
	rules.AddDefaults()
	c := &Chart{version: version}
	sum := sha256.New()
	err = fs.WalkDir(files, folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		within := strings.TrimPrefix(name, folder+"/")
		switch {
		case rules.Ignore(within, info) && entry.IsDir():
			return fs.SkipDir
		case entry.IsDir() || rules.Ignore(within, info):
			return nil
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%q %d\n", within, len(data))
		sum.Write(data)
		c.files = append(c.files, &archive.BufferedFile{Name: within, Data: data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading chart %s: %w", folder, err)
	}
	c.digest = hex.EncodeToString(sum.Sum(nil))
	if _, err := c.loadCopy(); err != nil {
		return nil, err
	}
	return c, nil
}

// loadCopy loads a new copy: Helm modifies the chart that it is given.
func (c *Chart) loadCopy() (*chart.Chart, error) {
	loaded, err := loader.LoadFiles(c.files)
	if err != nil {
		return nil, fmt.Errorf("loading the agent's chart: %w", err)
	}
	if err := loaded.Validate(); err != nil {
		return nil, fmt.Errorf("checking the agent's chart: %w", err)
	}
	if c.sourceVersion == "" {
		c.sourceVersion = loaded.Metadata.AppVersion
	}
	// The appVersion selects the image, unless the values do.
	loaded.Metadata.AppVersion = c.version
	if number := strings.TrimPrefix(c.version, "v"); isSemantic(number) {
		loaded.Metadata.Version = number
	}
	return loaded, nil
}

func isSemantic(v string) bool {
	_, err := version.ParseSemantic(v)
	return err == nil
}

// ValuesLayer is a part of the values as YAML. Name says where it comes from.
type ValuesLayer struct{ Name, Text string }

// Values of a release.
type Values struct {
	merged map[string]any
	// Version of the agent that the values select.
	Version string
	// Revision identifies chart and values of a release.
	Revision string
}

// MergeValues merges layers by Helm's rules, where the last one wins, and validates them
// against the chart's schema. The error is for the author of the values.
func (c *Chart) MergeValues(layers ...ValuesLayer) (*Values, error) {
	merged := map[string]any{}
	for _, layer := range layers {
		read, err := loader.LoadValues(strings.NewReader(layer.Text))
		if err != nil {
			return nil, fmt.Errorf("%s is no YAML of values: %w", layer.Name, err)
		}
		merged = loader.MergeMaps(merged, read)
	}
	loaded, err := c.loadCopy()
	if err != nil {
		return nil, err
	}
	all, err := util.CoalesceValues(loaded, merged)
	if err != nil {
		return nil, fmt.Errorf("merging the values of %s with the chart's: %w", layerNames(layers), err)
	}
	if err := util.ValidateAgainstSchema(loaded, all); err != nil {
		return nil, fmt.Errorf("%s: %w", layerNames(layers), err)
	}
	text, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("writing down the values of %s: %w", layerNames(layers), err)
	}
	sum := sha256.Sum256([]byte(c.digest + "\n" + c.version + "\n" + string(text)))
	return &Values{merged: merged, Version: agentVersion(merged, c.version), Revision: hex.EncodeToString(sum[:])[:32]}, nil
}

// agentVersion returns the version that the values select, by default the chart's.
func agentVersion(values map[string]any, chart string) string {
	image, _ := values["image"].(map[string]any)
	if tag, _ := image["tag"].(string); tag != "" {
		return tag
	}
	return chart
}

func layerNames(layers []ValuesLayer) string {
	var all []string
	for _, layer := range layers {
		all = append(all, layer.Name)
	}
	return strings.Join(all, " with ")
}
