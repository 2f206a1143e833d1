package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/certificates"
)

type secure struct {
	t *testing.T
	FarmObserved
	now time.Time
}

func newSecure(t *testing.T) *secure {
	return &secure{
		t,
		FarmObserved{
			Farm: &buildbarn.Buildbarn{ObjectMeta: metav1.ObjectMeta{Name: "farm", Namespace: "ns", UID: types.UID("f")},
				Spec: buildbarn.BuildbarnSpec{TLS: &buildbarn.FarmTLS{LifetimeHours: 3}}},
		}, now,
	}
}

func (s *secure) step() (issued []string, a FarmActions) {
	s.t.Helper()
	a = PlanFarm(s.FarmObserved, s.now)
	for _, i := range a.Issue {
		data, err := i.content(s.now)
		require.NoError(s.t, err)
		i.Secret.Data = data
		s.drop(i.Secret.Name)
		s.Secrets = append(s.Secrets, i.Secret)
		issued = append(issued, i.Secret.Name)
	}
	for _, o := range append(a.Create, a.Update...) {
		switch o := o.(type) {
		case buildbarn.Part:
			o.Observed().State = buildbarn.Ready
			s.Parts = append(s.Parts, o)
		case *corev1.ConfigMap:
			s.ConfigMap = o
		}
	}
	for _, o := range a.Delete {
		s.drop(o.GetName())
	}
	if s.ConfigMap != nil {
		configure(&s.FarmObserved)
	}
	s.Farm = s.Farm.DeepCopy()
	s.Farm.Status = a.Status
	return issued, a
}

func (s *secure) drop(name string) {
	for i, have := range s.Secrets {
		if have.Name == name {
			s.Secrets = append(s.Secrets[:i:i], s.Secrets[i+1:]...)
			return
		}
	}
}

func (s *secure) condition(kind string) metav1.Condition {
	s.t.Helper()
	c := meta.FindStatusCondition(s.Farm.Status.Conditions, kind)
	require.NotNil(s.t, c)
	return *c
}

var allSecrets = []string{
	"farm-client-tls", "farm-operator-tls", "farm-storage-tls", "farm-scheduler-tls", "farm-frontend-tls",
	"farm-worker-default-tls",
}

// TestFarmTLS checks that the authority comes first, then certificates and parts, and that certificates are renewed
// in time and repaired.
func TestFarmTLS(t *testing.T) {
	s := newSecure(t)
	issued, a := s.step()
	require.Equal(t, []string{"farm-ca"}, issued)
	require.Empty(t, a.Create, "there is no part that could not talk to the others")
	issued, a = s.step()
	require.ElementsMatch(t, allSecrets, issued)
	require.Len(t, a.Create, 5)
	for _, p := range s.Parts {
		require.Equal(t, p.GetName()+"-tls", p.Pods().TLS.SecretName)
	}
	require.Contains(t, s.ConfigMap.Data["authorities.pem"], "BEGIN CERTIFICATE")
	require.NotContains(t, s.ConfigMap.Data, "token.key")
	files := s.ConfigMap.Data
	issued, a = s.step()
	require.Empty(t, issued)
	require.Empty(t, a.Create)
	require.Equal(t, buildbarn.Ready, s.Farm.Status.State)
	require.Equal(t, metav1.ConditionTrue, s.condition(buildbarn.ConditionCertificates).Status)
	require.InDelta(t, (2 * time.Hour).Seconds(), a.Again.Seconds(), 2, "it looks again when they are to be renewed")

	// At two thirds of their life all certificates are renewed. No pod is replaced, because programs reload the files.
	s.now = s.now.Add(2*time.Hour + time.Minute)
	issued, a = s.step()
	require.ElementsMatch(t, allSecrets, issued)
	require.Empty(t, a.Update)
	require.Equal(t, files, s.ConfigMap.Data)

	// Damaged and deleted certificates are issued again by the same authority.
	delete(s.secret("farm-storage-tls").Data, "tls.key")
	s.drop("farm-client-tls")
	issued, _ = s.step()
	require.ElementsMatch(t, []string{"farm-storage-tls", "farm-client-tls"}, issued)

	s.Farm.Spec.TLS.Names = []string{"farm.example.com"}
	issued, _ = s.step()
	require.Equal(t, []string{"farm-frontend-tls"}, issued)

	// A damaged authority replaces no certificate; a deleted one replaces all.
	authority := s.secret("farm-ca")
	good := authority.Data["tls.key"]
	authority.Data["tls.key"] = nil
	issued, a = s.step()
	require.Empty(t, issued)
	require.Empty(t, a.Update)
	require.Equal(t, buildbarn.NotReady, s.Farm.Status.State)
	require.Contains(t, s.condition(buildbarn.ConditionReady).Message,
		"Secret farm-ca: tls.key: is not in PEM format: restore it, or delete it")
	authority.Data["tls.key"] = good
	issued, _ = s.step()
	require.Empty(t, issued)
	s.drop("farm-ca")
	s.step()
	issued, a = s.step()
	require.ElementsMatch(t, allSecrets, issued)
	require.Len(t, a.Update, 1, "the configuration, with which the parts are rolled out")
	require.NotEqual(t, files["authorities.pem"], s.ConfigMap.Data["authorities.pem"])

	s.Farm.Spec.TLS = nil
	_, a = s.step()
	require.Len(t, a.Delete, 7, "without TLS there are no Secrets")
	require.Empty(t, s.Secrets)
	for _, o := range a.Update {
		if p, ok := o.(buildbarn.Part); ok {
			require.Nil(t, p.Pods().TLS)
		}
	}
}

// TestFarmTLSNameTaken checks that foreign Secrets are left alone.
func TestFarmTLSNameTaken(t *testing.T) {
	s := newSecure(t)
	s.step()
	s.Secrets = append(s.Secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "farm-storage-tls", Namespace: "ns"}})
	issued, a := s.step()
	require.NotContains(t, issued, "farm-storage-tls")
	require.Empty(t, a.Delete)
	require.Equal(t, "there is a Secret farm-storage-tls that this farm has not made: delete it, or choose another name",
		s.condition(buildbarn.ConditionCertificates).Message)
}

// TestPartTLS checks that only the program's container gets the certificate. A new authority replaces the pods, a
// renewed certificate does not.
func TestPartTLS(t *testing.T) {
	data, err := certificates.NewAuthority("ca", now)
	require.NoError(t, err)
	authority, err := certificates.ParseAuthority(data, now)
	require.NoError(t, err)
	secret := func() *corev1.Secret {
		data, err := authority.Issue(certificates.Leaf{Identity: "a://b", Life: time.Hour}, now)
		require.NoError(t, err)
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "ns"}, Data: data}
	}
	for _, kind := range components {
		w := newWorld(kind)
		w.Part.Pods().TLS = &buildbarn.PartTLS{SecretName: "cert"}
		w.settle(t)
		require.Equal(t, "SecretMissing", conditionOf(w.Part, buildbarn.ConditionCertificates).Reason)
		require.Equal(t, buildbarn.NotReady, w.Part.Observed().State)
		w.Secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "cert"},
			Data:       map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y"), "ca.crt": []byte("z")},
		}
		w.settle(t)
		require.Equal(t, "SecretInvalid", conditionOf(w.Part, buildbarn.ConditionCertificates).Reason)
		w.Secret = secret()
		w.settle(t)
		require.Equal(t, buildbarn.Ready, w.Part.Observed().State, kind)
		var pod *corev1.PodTemplateSpec
		if w.Deployment != nil {
			pod = &w.Deployment.Spec.Template
		} else {
			pod = &w.StatefulSet.Spec.Template
		}
		for i, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
			mounted := false
			for _, m := range c.VolumeMounts {
				mounted = mounted || m.Name == "tls"
			}
			require.Equal(t, i == 0, mounted, "%s: container %s", kind, c.Name)
		}
		w.Secret = secret()
		require.Empty(t, w.settle(t), "a renewed certificate writes nothing")
		w.Secret = w.Secret.DeepCopy()
		w.Secret.Data["ca.crt"] = append(w.Secret.Data["ca.crt"], '\n')
		require.Len(t, w.settle(t), 1, "other authorities replace the pods")
		w.Secret = nil
		require.Empty(t, w.settle(t), "a missing Secret replaces none")
	}
}

// TestActionsCannotReadCertificates checks that worker and runner have different users, whatever the worker's image
// says.
func TestActionsCannotReadCertificates(t *testing.T) {
	w := newPartOf("worker").(*buildbarn.BuildbarnWorker)
	require.Nil(t, template(w, mounts{}).Spec.Containers[0].SecurityContext, "its image decides")
	w.Spec.TLS = &buildbarn.PartTLS{SecretName: "s"}
	pod := template(w, mounts{}).Spec
	require.Zero(t, *pod.Containers[0].SecurityContext.RunAsUser)
	require.NotZero(t, *pod.Containers[1].SecurityContext.RunAsUser)
	require.NotContains(t, mounted(pod.Containers[1]), "tls")
}
