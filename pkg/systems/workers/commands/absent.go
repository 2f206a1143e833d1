package commands

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// absent returns an error with a remedy if the response says that a namespace, pod, service, worker or message does not
// exist, else nil.
func (c cluster) absent(ctx context.Context, s *metav1.Status) error {
	if s.Reason != metav1.StatusReasonNotFound || s.Details == nil || s.Details.Name == "" {
		return nil
	}
	if err := c.CheckNamespace(ctx); err != nil {
		return err
	}
	name := s.Details.Name
	if worker, id, ok := strings.Cut(name, "/queue/"); ok {
		return fmt.Errorf("worker %s has no message %s: `coracle queue %[1]s list -n %[3]s` lists its messages", worker, id,
			c.Namespace)
	}
	switch s.Details.Kind {
	case "services":
		return fmt.Errorf("there is no service %s in namespace %s: `coracle get workers -A` lists workers, and a worker's "+
			"service has its name", name, c.Namespace)
	case "pods":
		return fmt.Errorf("there is no pod %s in namespace %s: `coracle get pods -A` lists pods", name, c.Namespace)
	case "workers":
		return fmt.Errorf("there is no worker %s in namespace %s: `coracle get workers -A` lists workers", name,
			c.Namespace)
	}
	return nil
}
