package pod

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"
)

// handlers are the RuntimeClass handlers for the node's only runtime; "" is the default.
var handlers = []string{"", "runc"}

// RuntimeHandlers returns the node's runtime handlers, for its status. users reports support for user namespaces.
func RuntimeHandlers(users bool) []corev1.NodeRuntimeHandler {
	readOnly := recursiveReadOnly()
	out := make([]corev1.NodeRuntimeHandler, 0, len(handlers))
	for _, name := range handlers {
		out = append(out, corev1.NodeRuntimeHandler{Name: name,
			Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users}})
	}
	return out
}

// recursiveReadOnly reports whether the kernel has mount_setattr(2), which came with Linux 5.12.
var recursiveReadOnly = sync.OnceValue(func() bool {
	return unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}) != unix.ENOSYS
})

// handler returns the handler of the pod's RuntimeClass, or an error if the node lacks it.
func (m *Manager) handler(ctx context.Context, p *corev1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	var class nodev1.RuntimeClass
	if err := m.c.Client.Get(ctx, types.NamespacedName{Name: *name}, &class); err != nil {
		return "", fmt.Errorf("RuntimeClass %q: %w", *name, err)
	}
	if !slices.Contains(handlers, class.Handler) {
		return "", fmt.Errorf("no runtime for %q is configured", class.Handler)
	}
	return class.Handler, nil
}
