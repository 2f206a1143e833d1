package testcluster_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/pkg/testing/testcluster"
)

// In a test, New(t, config) starts the cluster and t.Cleanup stops it.
func Example() {
	cluster, err := testcluster.Start(testcluster.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			log.Fatal(err)
		}
	}()
	api := kubernetes.NewForConfigOrDie(cluster.REST())
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "blue"},
	}
	if _, err := api.CoreV1().ConfigMaps("default").Create(context.Background(), settings, metav1.CreateOptions{}); err !=
		nil {
		log.Fatal(err)
	}
	read, err := api.CoreV1().ConfigMaps("default").Get(context.Background(), "settings", metav1.GetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(read.Data["color"])
	// Output: blue
}
