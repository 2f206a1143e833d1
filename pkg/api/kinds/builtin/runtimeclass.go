package builtin

import (
	nodev1 "k8s.io/api/node/v1"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func nodeRows() []*kind.Resource {
	classes := row[nodev1.RuntimeClass, nodev1.RuntimeClassList](gv("node.k8s.io", "v1"), "runtimeclasses", "runtimeclass",
		runtimeclass.Strategy, metaFields)
	return []*kind.Resource{classes}
}
