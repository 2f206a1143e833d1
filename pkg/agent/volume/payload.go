package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type token struct {
	text    string
	refresh time.Time
}

func mode(item, def *int32) fs.FileMode {
	switch {
	case item != nil:
		return fs.FileMode(*item) & 0o777
	case def != nil:
		return fs.FileMode(*def) & 0o777
	}
	return 0o644
}

// payload collects the files of a volume that is made of objects.
func (m *Manager) payload(ctx context.Context, p *corev1.Pod, v *corev1.Volume, podIP string) (map[string]File, time.Time, error) {
	files := map[string]File{}
	var refresh time.Time
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return files, refresh, m.configMap(ctx, p, files, s.Name, s.Items, s.DefaultMode, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return files, refresh, m.secret(ctx, p, files, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case v.DownwardAPI != nil:
		return files, refresh, m.downward(p, files, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode, podIP)
	case v.Projected != nil:
	default:
		return nil, refresh, errors.New("this type of volume is not supported on this node; use emptyDir, hostPath, configMap, secret, downwardAPI or projected")
	}
	var errs []error
	for _, s := range v.Projected.Sources {
		def := v.Projected.DefaultMode
		switch {
		case s.ConfigMap != nil:
			errs = append(errs, m.configMap(ctx, p, files, s.ConfigMap.Name, s.ConfigMap.Items, def, s.ConfigMap.Optional))
		case s.Secret != nil:
			errs = append(errs, m.secret(ctx, p, files, s.Secret.Name, s.Secret.Items, def, s.Secret.Optional))
		case s.DownwardAPI != nil:
			errs = append(errs, m.downward(p, files, s.DownwardAPI.Items, def, podIP))
		case s.ServiceAccountToken != nil:
			t, err := m.token(ctx, p, s.ServiceAccountToken)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			f := File{Data: []byte(t.text), Mode: mode(nil, def), UID: soleUser(p)}
			if f.UID != nil || fsGroup(p) != nil { // the group's permissions are added with its ownership
				f.Mode = 0o600
			}
			files[s.ServiceAccountToken.Path] = f
			if refresh.IsZero() || t.refresh.Before(refresh) {
				refresh = t.refresh
			}
		default:
			errs = append(errs, errors.New("this projected source is not supported on this node; use configMap, secret, downwardAPI or serviceAccountToken"))
		}
	}
	return files, refresh, errors.Join(errs...)
}

// soleUser returns the user that all containers run as, or nil if they differ or one does not specify it.
func soleUser(p *corev1.Pod) *int64 {
	var ofPod *int64
	if p.Spec.SecurityContext != nil {
		ofPod = p.Spec.SecurityContext.RunAsUser
	}
	contexts := make([]*corev1.SecurityContext, 0, len(p.Spec.Containers))
	for i := range p.Spec.InitContainers {
		contexts = append(contexts, p.Spec.InitContainers[i].SecurityContext)
	}
	for i := range p.Spec.Containers {
		contexts = append(contexts, p.Spec.Containers[i].SecurityContext)
	}
	for i := range p.Spec.EphemeralContainers {
		contexts = append(contexts, p.Spec.EphemeralContainers[i].SecurityContext)
	}
	var sole *int64
	for _, sc := range contexts {
		user := ofPod
		if sc != nil && sc.RunAsUser != nil {
			user = sc.RunAsUser
		}
		if user == nil || sole != nil && *user != *sole {
			return nil
		}
		sole = user
	}
	return sole
}

func add(files map[string]File, data map[string][]byte, items []corev1.KeyToPath, def *int32, optional bool, what string) error {
	if len(items) == 0 {
		for k, v := range data {
			files[k] = File{Data: v, Mode: mode(nil, def)}
		}
		return nil
	}
	for _, i := range items {
		v, ok := data[i.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("%s references non-existent key: %s", what, i.Key)
		}
		files[path.Clean(i.Path)] = File{Data: v, Mode: mode(i.Mode, def)}
	}
	return nil
}

func (m *Manager) configMap(ctx context.Context, p *corev1.Pod, files map[string]File, name string, items []corev1.KeyToPath, def *int32, opt *bool) error {
	optional := opt != nil && *opt
	cm, err := m.objects.ConfigMap(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return add(files, data, items, def, optional, "configmap")
}

func (m *Manager) secret(ctx context.Context, p *corev1.Pod, files map[string]File, name string, items []corev1.KeyToPath, def *int32, opt *bool) error {
	optional := opt != nil && *opt
	s, err := m.objects.Secret(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return add(files, s.Data, items, def, optional, "secret")
}

func (m *Manager) downward(p *corev1.Pod, files map[string]File, items []corev1.DownwardAPIVolumeFile, def *int32, podIP string) error {
	for _, i := range items {
		var text string
		var err error
		switch {
		case i.FieldRef != nil:
			text, err = Field(p, i.FieldRef.FieldPath, podIP, m.c.HostIP)
		case i.ResourceFieldRef != nil:
			text, err = Resource(p, i.ResourceFieldRef, "", m.c.Allocatable())
		}
		if err != nil {
			return err
		}
		files[path.Clean(i.Path)] = File{Data: []byte(text), Mode: mode(i.Mode, def)}
	}
	return nil
}

// token returns a token for the pod's service account, a new one when four fifths of the old one's life, or a
// day, are over.
func (m *Manager) token(ctx context.Context, p *corev1.Pod, s *corev1.ServiceAccountTokenProjection) (token, error) {
	seconds := int64(3600)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	key := fmt.Sprintf("%s/%s/%d", p.UID, s.Audience, seconds)
	now := time.Now()
	m.mu.Lock()
	t, have := m.tokens[key]
	m.mu.Unlock()
	if have && now.Before(t.refresh) {
		return t, nil
	}
	account := p.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
	if s.Audience != "" {
		req.Spec.Audiences = []string{s.Audience}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: account}}
	if err := m.c.Client.SubResource("token").Create(ctx, sa, req); err != nil {
		if have && now.Before(t.refresh.Add(time.Duration(seconds)*time.Second/5)) {
			return t, nil // the old one is good for a while
		}
		return token{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	life := time.Until(req.Status.ExpirationTimestamp.Time)
	if life <= 0 {
		life = time.Duration(seconds) * time.Second
	}
	t = token{text: req.Status.Token, refresh: now.Add(min(life*4/5, 24*time.Hour))}
	m.mu.Lock()
	m.tokens[key] = t
	m.mu.Unlock()
	return t, nil
}
