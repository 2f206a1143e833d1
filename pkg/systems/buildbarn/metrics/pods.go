package metrics

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// Own returns the pods that the workload of a part controls. Anyone who may create pods can give them a part's labels.
func Own(ctx context.Context, c client.Reader, part buildbarn.Part, pods []corev1.Pod) ([]*corev1.Pod, error) {
	at := client.ObjectKeyFromObject(part)
	var workload client.Object = &appsv1.Deployment{}
	if _, ok := part.(*buildbarn.BuildbarnStorage); ok {
		workload = &appsv1.StatefulSet{}
	}
	if err := c.Get(ctx, at, workload); err != nil || !metav1.IsControlledBy(workload, part) {
		return nil, client.IgnoreNotFound(err)
	}
	var own []*corev1.Pod
	owners := map[types.UID]bool{workload.GetUID(): true} // whether they are the workload or a ReplicaSet of it
	for i := range pods {
		controller := metav1.GetControllerOfNoCopy(&pods[i])
		if controller == nil {
			continue
		}
		if _, known := owners[controller.UID]; !known && controller.Kind == "ReplicaSet" {
			var set appsv1.ReplicaSet
			err := c.Get(ctx, client.ObjectKey{Namespace: at.Namespace, Name: controller.Name}, &set)
			if client.IgnoreNotFound(err) != nil {
				return nil, err
			}
			owners[controller.UID] = err == nil && set.UID == controller.UID && metav1.IsControlledBy(&set, workload)
		}
		if owners[controller.UID] {
			own = append(own, &pods[i])
		}
	}
	return own, nil
}
