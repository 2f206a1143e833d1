package admission

import (
	"fmt"
	"io"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// registerNodeSelector registers upstream's PodNodeSelector with strict decoding of its configuration: the plugin
// itself ignores unknown fields, and loops forever on text that it cannot decode.
func registerNodeSelector(all *admission.Plugins) {
	all.Register(podnodeselector.PluginName, func(config io.Reader) (admission.Interface, error) {
		var known struct {
			Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
		}
		if config != nil {
			data, err := bounded.All(config, maxPluginConfig)
			if err != nil {
				return nil, err
			}
			if err := yaml.UnmarshalStrict(data, &known); err != nil {
				return nil, fmt.Errorf("podNodeSelectorPluginConfig: %w", err)
			}
		}
		return podnodeselector.NewPodNodeSelector(known.Selectors), nil
	})
}
