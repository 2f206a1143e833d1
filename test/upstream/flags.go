package upstream

import "strconv"

// memberName is the member name in a Coracle server, so that etcd accepts the server's data as its own.
const memberName = "coracle"

// issuer is the issuer of a Coracle server's service account tokens.
const issuer = "https://kubernetes.default.svc.cluster.local"

func etcdFlags(c *Config, url string) []string {
	peer := "http://127.0.0.1:" + strconv.Itoa(c.EtcdPort+1)
	return []string{
		"--name=" + memberName, "--data-dir=" + c.Data,
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=" + memberName + "=" + peer,
		"--log-level=warn",
	}
}

func apiServerFlags(c *Config, f files, etcd string) []string {
	flags := []string{
		"--etcd-servers=" + etcd,
		"--bind-address=0.0.0.0", "--advertise-address=" + c.Address, "--secure-port=" + strconv.Itoa(c.Port),
		"--tls-cert-file=" + f.path("server.crt"), "--tls-private-key-file=" + f.path("server.key"),
		"--client-ca-file=" + f.path("client-ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + f.path("accounts.key"),
		"--service-account-signing-key-file=" + f.path("accounts.key"),
		"--service-cluster-ip-range=" + c.ServiceCIDR, "--allow-privileged=true",
	}
	if c.Bare {
		return append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	return append(flags, "--enable-bootstrap-token-auth",
		"--kubelet-certificate-authority="+f.path("node-ca.crt"),
		"--kubelet-client-certificate="+f.path("kubelet.crt"), "--kubelet-client-key="+f.path("kubelet.key"),
		"--requestheader-client-ca-file="+f.path("front-proxy-ca.crt"), "--requestheader-allowed-names="+frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+f.path("front-proxy.crt"), "--proxy-client-key-file="+f.path("front-proxy.key"),
	)
}

func controllerFlags(c *Config, f files) []string {
	return []string{
		"--kubeconfig=" + f.kubeconfig(Controller), "--secure-port=0", "--leader-elect=false",
		"--use-service-account-credentials=true", "--service-account-private-key-file=" + f.path("accounts.key"),
		"--root-ca-file=" + f.path("server-ca.crt"),
		"--cluster-signing-cert-file=" + f.path("client-ca.crt"), "--cluster-signing-key-file=" + f.path("client-ca.key"),
		"--allocate-node-cidrs=true", "--cluster-cidr=" + c.ClusterCIDR, "--service-cluster-ip-range=" + c.ServiceCIDR,
	}
}

func schedulerFlags(f files) []string {
	return []string{"--kubeconfig=" + f.kubeconfig(Scheduler), "--secure-port=0", "--leader-elect=false"}
}
