"""Runs as other tools want them: Prometheus, TensorBoard, MLflow. One module each, all extras."""
