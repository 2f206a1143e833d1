package commands

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/certificates"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

const frontendPort = 8980

// frontend returns the Service of the namespace's only frontend.
func (c cluster) frontend(ctx context.Context) (*corev1.Service, error) {
	var services corev1.ServiceList
	if err := c.Client.List(ctx, &services, ctrl.InNamespace(c.Namespace)); err != nil {
		return nil, err
	}
	var found []*corev1.Service
	for i := range services.Items {
		for _, p := range services.Items[i].Spec.Ports {
			if p.Port == frontendPort {
				found = append(found, &services.Items[i])
				break
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if err := c.CheckNamespace(ctx); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("namespace %s has no service with port %d, as a BuildbarnFrontend has: choose its namespace "+
			"with -n, or its address with --frontend", c.Namespace, frontendPort)
	default:
		var names []string
		for _, s := range found {
			names = append(names, s.Name)
		}
		return nil, fmt.Errorf("namespace %s has several frontends (%s): choose one by its address with --frontend",
			c.Namespace, strings.Join(names, ", "))
	}
}

// addressOf returns host:port of a Service.
func addressOf(s *corev1.Service) (string, error) {
	host := s.Spec.ClusterIP
	if in := s.Status.LoadBalancer.Ingress; len(in) > 0 {
		if host = in[0].IP; host == "" {
			host = in[0].Hostname
		}
	}
	if host == "" || host == corev1.ClusterIPNone {
		return "", fmt.Errorf("service %s of namespace %s has no address: forward a port to one of its pods, and give it "+
			"with --frontend", s.Name, s.Namespace)
	}
	return net.JoinHostPort(host, strconv.Itoa(frontendPort)), nil
}

// frontendTLS returns the client configuration for a frontend with a certificate, or nil if it has none. In a farm
// (kind Buildbarn) it is made from the clients' Secret, otherwise from the authorities in the frontend's own Secret.
func (c cluster) frontendTLS(ctx context.Context, s *corev1.Service) (*tls.Config, error) {
	owner := metav1.GetControllerOfNoCopy(s)
	if owner == nil || owner.Kind != "BuildbarnFrontend" {
		return nil, nil
	}
	var f buildbarn.BuildbarnFrontend
	if err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: s.Namespace, Name: owner.Name}, &f); err != nil {
		return nil, err
	}
	if f.Spec.TLS == nil {
		return nil, nil
	}
	name, isFarm := f.Spec.TLS.SecretName, false
	if farm := metav1.GetControllerOfNoCopy(&f); farm != nil && farm.Kind == "Buildbarn" {
		name, isFarm = config.ClientOf(farm.Name), true
	}
	var secret corev1.Secret
	if err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: s.Namespace, Name: name}, &secret); err != nil {
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("the frontend uses TLS, and its clients' Secret cannot be read: %w: give --ca, and --cert "+
				"and --key or --token-file", err)
		}
		return nil, err
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.Name + "." + s.Namespace, RootCAs: x509.NewCertPool()}
	if !t.RootCAs.AppendCertsFromPEM(secret.Data[certificates.Authorities]) {
		return nil, fmt.Errorf("Secret %s/%s has no certificates under %s", s.Namespace, name, certificates.Authorities)
	}
	if isFarm {
		pair, err := tls.X509KeyPair(secret.Data[certificates.Certificate], secret.Data[certificates.Key])
		if err != nil {
			return nil, fmt.Errorf("Secret %s/%s: %w", s.Namespace, name, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
