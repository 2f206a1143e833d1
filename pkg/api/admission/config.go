package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxPluginConfig is the maximum size of a file of the admission configuration, in bytes.
const maxPluginConfig = 1 << 20

// pluginConfigs maps plugin names to their configuration. It implements admission.ConfigProvider.
type pluginConfigs map[string][]byte

// ConfigFor returns nil for a plugin without configuration.
func (c pluginConfigs) ConfigFor(name string) (io.Reader, error) {
	return configReader(c[name]), nil
}

// configReader returns a reader of a plugin's configuration, or a nil interface if it is empty, as upstream's
// plugins expect.
func configReader(data []byte) io.Reader {
	if len(data) == 0 {
		return nil
	}
	return bytes.NewReader(data)
}

// readPluginConfigs strictly decodes an AdmissionConfiguration. Configuration for a plugin that is not enabled is an
// error, since it would have no effect.
func readPluginConfigs(path string, on []plugin) (pluginConfigs, error) {
	configs := pluginConfigs{}
	for _, p := range on {
		configs[p.name] = []byte(p.config)
	}
	if path == "" {
		return configs, nil
	}
	data, err := readConfigFile(path)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	file, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("found a %T instead of an AdmissionConfiguration", obj)
	}
	var seen []string
	for _, p := range file.Plugins {
		switch {
		case slices.Contains(seen, p.Name):
			err = errors.New("configured twice")
		case !slices.ContainsFunc(on, func(o plugin) bool { return o.name == p.Name }):
			err = errors.New("there is no such plugin, or it is not enabled")
		case p.Configuration != nil && p.Path != "":
			err = errors.New("give configuration or path, not both")
		case p.Configuration != nil:
			configs[p.Name] = p.Configuration.Raw
		case p.Path != "":
			if !filepath.IsAbs(p.Path) {
				p.Path = filepath.Join(filepath.Dir(path), p.Path)
			}
			configs[p.Name], err = readConfigFile(p.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("plugin %q: %w", p.Name, err)
		}
		seen = append(seen, p.Name)
	}
	return configs, nil
}

func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path) // a path from the administrator may be a symlink
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded.All(f, maxPluginConfig)
}
