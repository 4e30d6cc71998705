"""The paper's tables, figures and claims, each as a command: `vaswani-transformer paper table3 --output FOLDER`."""
