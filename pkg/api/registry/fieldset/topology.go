package fieldset

import (
	_ "embed"
	"reflect"
	"strings"
	"sync"
)

// topologyText describes where the fields of built-in kinds differ from what their Go types suggest, one rule per line:
//
//	kind apps/v1.Deployment                               supported by plans: its types agree with upstream's schema
//	core/v1.PodSpec.containers keys name                  a list that is a map; "protocol=TCP" is a key with a default
//	meta/v1.ObjectMeta.finalizers set
//	core/v1.PodSpec.nodeSelector atomic                   for one field
//	core/v1.ObjectReference atomic                        for all values of a type
//	core/v1.PersistentVolumeSpec.claimRef granular        an exception for one field
//
// Without a rule, structs and maps are granular, lists and everything else are atomic.
//
//go:embed topology.txt
var topologyText string

// rule describes how values of a field or type are compared.
type rule struct {
	atomic, set bool
	keys        []string
	defaults    []*string // of the keys; nil for none
}

// topology parses topologyText on first use.
var topology = sync.OnceValue(func() map[string]rule {
	rules := map[string]rule{}
	for line := range strings.Lines(topologyText) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[1] {
		case "atomic":
			rules[words[0]] = rule{atomic: true}
		case "granular":
			rules[words[0]] = rule{}
		case "set":
			rules[words[0]] = rule{set: true}
		case "keys":
			var r rule
			for _, key := range words[2:] {
				name, fallback, has := strings.Cut(key, "=")
				r.keys, r.defaults = append(r.keys, name), append(r.defaults, nil)
				if has {
					r.defaults[len(r.keys)-1] = &fallback
				}
			}
			rules[words[0]] = r
		default:
			rules[words[0]+" "+words[1]] = rule{}
		}
	}
	return rules
})

func typeName(t reflect.Type) string {
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(t.PkgPath(), "k8s.io/api/"),
		"k8s.io/apimachinery/pkg/apis/"), "k8s.io/apimachinery/pkg/") + "." + t.Name()
}
